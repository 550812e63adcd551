"""What was acknowledged is there after a stop and after kill -9; a data folder has one owner."""

import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from harness.rest import Connection, points_body, request_bytes
from harness.server import Server, StartError, binary, free_port

DIM = 32


def fill(client, name, rng, count=3_000):
    vectors = rng.standard_normal((count, DIM)).astype(np.float32)
    client.create_collection(name, models.VectorParams(size=DIM, distance=models.Distance.DOT))
    for at in range(0, count, 500):
        ids = list(range(at, min(at + 500, count)))
        client.upsert(name, models.Batch(ids=ids, vectors=vectors[at : at + 500].tolist(), payloads=[{"n": i} for i in ids]), wait=False)
    client.delete(name, points_selector=list(range(0, count, 10)), wait=False)
    client.upsert(name, [models.PointStruct(id=1, vector=[9] * DIM, payload={"n": "again"})], wait=False)
    return vectors


def holds(client, name, vectors):
    assert client.count(name, exact=True).count == len(vectors) - len(vectors) // 10
    kept = [i for i in range(2, len(vectors), 97) if i % 10]
    for point in client.retrieve(name, kept, with_vectors=True):
        np.testing.assert_array_equal(np.float32(point.vector), vectors[point.id])
        assert point.payload == {"n": point.id}
    assert client.retrieve(name, [0, 10, 20]) == []
    assert client.retrieve(name, [1])[0].payload == {"n": "again"}
    query = vectors[2].tolist()
    best = client.query_points(name, query=query, limit=10, search_params=models.SearchParams(exact=True)).points
    alive = np.array([i for i in range(2, len(vectors)) if i % 10])
    scores = {int(i): float(s) for i, s in zip(alive, vectors[alive] @ vectors[2], strict=True)} | {1: float(9 * vectors[2].sum())}
    assert [p.id for p in best] == sorted(scores, key=lambda i: -scores[i])[:10]


@pytest.mark.parametrize("kindly", [True, False], ids=["sigterm", "kill9"])
def test_data_outlives_the_process(own_server, rng, kindly):
    client = QdrantClient(url=own_server.url, timeout=60)
    vectors = fill(client, "kept", rng)
    alias = models.CreateAlias(collection_name="kept", alias_name="also")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
    for _ in range(2):
        if kindly:
            assert own_server.stop() == 0
        else:
            own_server.kill9()
        own_server.start()
        holds(client, "kept", vectors)
        holds(client, "also", vectors)
    client.close()


def test_kill_while_writing_loses_nothing_acknowledged(own_server, rng):
    """One writer goes on until its connection breaks; each acknowledged batch must be there, whole."""
    rest = Connection(own_server.port)
    rest.must("PUT", "/collections/busy", {"vectors": {"size": DIM, "distance": "Dot"}})
    vectors = rng.standard_normal((200, DIM)).astype(np.float32)
    acknowledged = 0
    for _ in range(4):
        first = acknowledged

        def write():
            nonlocal acknowledged
            connection = Connection(own_server.port)
            try:
                while True:
                    raw = points_body(200 * acknowledged, vectors, [{"turn": acknowledged}] * 200)
                    if connection.send(request_bytes("PUT", "/collections/busy/points?wait=false", raw)).status == 200:
                        acknowledged += 1
            except OSError:
                pass

        writer = threading.Thread(target=write)
        writer.start()
        until = time.monotonic() + 20
        while acknowledged < first + 10 and time.monotonic() < until:
            time.sleep(0.01)
        own_server.kill9()
        writer.join()
        assert acknowledged >= first + 10
        own_server.start()
        count = Connection(own_server.port).must("POST", "/collections/busy/points/count", {"exact": True})["count"]
        # The batch that was in flight may be there as a whole, or not at all.
        assert count in (200 * acknowledged, 200 * (acknowledged + 1))
        ids = [200 * turn + 7 for turn in range(acknowledged)]
        found = Connection(own_server.port).must("POST", "/collections/busy/points", {"ids": ids, "with_payload": True})
        assert {p["id"]: p["payload"]["turn"] for p in found} == {i: i // 200 for i in ids}


def tear_last_request(data: Path) -> None:
    """Zeros the end of the last record of the log, as a write that was under way when the power went leaves it."""
    logs = [file for file in data.rglob("*") if file.is_file() and file.read_bytes()[:8] == b"RAMEKLOG"]
    last = max(logs, key=lambda file: int(file.stem, 16))
    text = bytearray(last.read_bytes())
    at = text.rindex(b"Rk\x01\x01")
    length = int.from_bytes(text[at + 4 : at + 8], "little")
    assert length > 1_000
    text[at + 700 : at + 24 + length] = bytes(24 + length - 700)
    last.write_bytes(text)


def test_what_a_start_cuts_off_the_log_is_said_there(tmp_path, rng):
    """A torn request is dropped as a whole, once, with a line that says how much it was."""
    batch = rng.standard_normal((200, DIM)).astype(np.float32)
    line = r"the log ended in a write that was under way and is dropped, .*: 1 request of which 0 records can be read, [\d.]+ KiB"
    for attempt in range(5):
        server = Server(tmp_path / f"data-{attempt}", "48MiB").start()
        rest = Connection(server.port)
        rest.must("PUT", "/collections/torn", {"vectors": {"size": DIM, "distance": "Dot"}})
        for first in (0, 1_000):
            assert rest.send(request_bytes("PUT", "/collections/torn/points?wait=true", points_body(first, batch))).status == 200
            if first == 0:
                time.sleep(1.5)  # how far the log is durable is noted once a second: now it is, and what follows not at once
        server.kill9()
        tear_last_request(server.data)
        try:
            server.start()
        except StartError:
            server.close()  # it was noted in between: then the log is damaged, and not torn
            continue
        assert Connection(server.port).must("POST", "/collections/torn/points/count", {"exact": True})["count"] == len(batch)
        assert len(re.findall(line, server.log.read_text())) == 1
        server.kill9()
        server.start()
        assert len(re.findall(line, server.log.read_text())) == 1
        server.close()
        return
    pytest.fail("each time the log was noted to be durable before the server was killed")


def test_a_smaller_budget_opens_the_same_data(tmp_path, rng):
    with Server(tmp_path / "data", "64MiB") as server:
        client = QdrantClient(url=server.url, timeout=60)
        vectors = fill(client, "kept", rng, 8_000)
    with Server(tmp_path / "data", "24MiB") as server:
        holds(QdrantClient(url=server.url, timeout=60), "kept", vectors)


def test_a_second_process_is_refused(own_server):
    with pytest.raises(StartError) as error:
        Server(own_server.data, "32MiB", log=own_server.data.with_name("second.log")).start()
    assert "data" in str(error.value).lower()
    assert own_server.alive() and Connection(own_server.port).get("/healthz").status == 200


def test_sigterm_lets_open_requests_end(own_server):
    rest = Connection(own_server.port)
    rest.must("PUT", "/collections/last", {"vectors": {"size": DIM, "distance": "Dot"}})
    body = points_body(0, np.ones((2_000, DIM), np.float32))
    answers = []

    def send():
        answers.append(Connection(own_server.port).send(request_bytes("PUT", "/collections/last/points?wait=true", body)).status)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.02)
    own_server.process.send_signal(signal.SIGTERM)
    thread.join()
    assert own_server.process.wait(60) == 0
    own_server.start()
    count = Connection(own_server.port).must("POST", "/collections/last/points/count", {"exact": True})["count"]
    assert count == (2_000 if answers == [200] else count)


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "data").write_text("not a folder")
    command = [binary(), "serve", "--data", tmp_path / "data", "--memory", "32MiB", "--http", f"127.0.0.1:{free_port()}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode not in (0, 101, -6) and str(tmp_path / "data") in ended.stderr + ended.stdout
