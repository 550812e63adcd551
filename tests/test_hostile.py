"""Requests and clients that mean harm, each by name: the server lives within its budget, answers others, and says what is wrong.

    one request     the largest bodies of a kind that is dear to decode or to answer
    many clients    that give up, do not read, or send a byte now and then
    the folder      a page or a file of the log that is damaged, all of it removed

`test_attack.py` draws such attacks by chance; here are those of which each is enough to stop a server that is not made for it.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from harness.rest import Connection, request_bytes
from harness.server import Server, StartError, binary

FIXTURES = Path(__file__).resolve().parent / "fixtures"
NAME = "c"
POINTS = f"/collections/{NAME}/points"
QUERY = {"query": [1.0, 0.0, 0.0, 0.0], "limit": 3}


def collection(server, count=0, payload=lambda id: {}):
    """A collection of some points with four dimensions, and a connection."""
    rest = Connection(server.port)
    rest.must("PUT", f"/collections/{NAME}", {"vectors": {"size": 4, "distance": "Dot"}})
    for first in range(0, count, 1_000):
        ids = range(first, min(first + 1_000, count))
        points = [{"id": i, "vector": [1.0, i % 7, i % 5, 0.5], "payload": payload(i)} for i in ids]
        rest.must("PUT", f"{POINTS}?wait=true", {"points": points})
    return rest


def answers(server, count=3):
    """Others are answered, on connections of their own."""
    for method, path, body in [("POST", f"{POINTS}/query", QUERY), ("GET", "/collections", None), ("GET", "/memory", None)]:
        connection, began = Connection(server.port, timeout=60), time.monotonic()
        answer = connection.ask(method, f"{path}?timeout=20", body)
        connection.close()
        assert answer.status == 200, (path, answer.status, answer.error)
        assert time.monotonic() - began < 20, path
        assert path != f"{POINTS}/query" or len(answer.result["points"]) == count


def within_budget(server):
    assert server.alive(), server.log_tail()
    assert server.peak() <= server.budget, f"the charge went to {server.peak() / 2**20:.1f} MiB"


def filled(before: bytes, each, after: bytes, size: int, between=b",") -> bytes:
    """`each(n)`, as often as the size allows."""
    parts, left, number = [], size - len(before) - len(after), 0
    while left > 0:
        parts.append(each(number))
        left, number = left - len(parts[-1]) - 1, number + 1
    return before + between.join(parts) + after


def repeated(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    return before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def dear_requests(size: int):
    """What each is, where it goes, and a body of about this size."""
    match = lambda kind: b'{"filter":{"must":[{"key":"t","match":{"%s":' % kind  # noqa: E731
    word = lambda n: b'"%x"' % n  # noqa: E731
    words = lambda kind: filled(match(kind) + b'"', lambda n: b"%x" % n, b'"}}]}}', size, b" ")  # noqa: E731
    yield "names of vectors", "/query", filled(b'{"query":[1,0,0,0],"with_vector":[', lambda n: b'""', b"]}", size)
    yield "any of many words", "/count", words(b"text_any")
    yield "a long phrase", "/count", words(b"phrase")
    yield "a text for a number", "/query", repeated(b'{"limit":"', b"\\u0001", b'"}', size)
    yield "an unknown key", "/count", repeated(b'{"filter":{"', b"k", b'":1}}', size)
    yield "a long path", "/count", repeated(b'{"filter":{"must":[{"key":"', b"a.", b'a","match":{"value":1}}]}}', size)
    yield "ids of a filter", "/count", filled(b'{"filter":{"must":[{"has_id":[', lambda n: b"%d" % n, b"]}]}}", size)
    yield "ids to read", "", filled(b'{"ids":[', lambda n: b"%d" % n, b"]}", size)
    yield "one of many words", "/count", filled(match(b"any") + b"[", word, b"]}}]}}", size)


@pytest.mark.parametrize("memory, part", [("24MiB", 6), ("48MiB", 4)])
def test_one_request_is_done_or_refused_within_the_budget(tmp_path, memory, part):
    with Server(tmp_path / "data", memory) as server:
        collection(server, 500, lambda i: {"t": f"some words of point {i}"})
        for what, path, body in dear_requests(server.budget // part - 4096):
            connection, began = Connection(server.port, timeout=120), time.monotonic()
            try:
                answer = connection.send(request_bytes("POST", POINTS + path, body))
            except OSError as error:
                pytest.fail(f"{what}: {error}; {'alive' if server.alive() else 'KILLED'}")
            connection.close()
            # What can never fit does not wait for others to give memory back.
            assert answer.status in (200, 400, 413, 422, 507), (what, answer.status, answer.error)
            assert time.monotonic() - began < 20, what
            assert answer.status == 200 or len(answer.body) < 8 << 10, (what, len(answer.body))
            within_budget(server)
            answers(server)


def send_and_leave(server, path, body, after_s):
    with socket.create_connection(("127.0.0.1", server.port), 30) as sock:
        try:
            sock.sendall(request_bytes("POST", path, body))
        except OSError:
            return  # refused before all of it was sent
        time.sleep(after_s)


@pytest.mark.parametrize("how", ["timeout", "hang up"])
def test_requests_that_were_given_up_hold_what_is_booked_for_them(tmp_path, how):
    words = " ".join(f"absent{n}" for n in range(3_000))
    asked = {"must": [{"key": "t", "match": {"text_any": words}}, {"has_id": list(range(330_000))}]}
    body = json.dumps({"filter": asked, "exact": True}).encode()
    with Server(tmp_path / "data", "48MiB") as server:
        collection(server, 20_000, lambda i: {"t": f"some words of point {i}"})
        for _ in range(12):
            if how == "hang up":
                send_and_leave(server, f"{POINTS}/count", body, 0.4)
            else:
                status = Connection(server.port).send(request_bytes("POST", f"{POINTS}/count?timeout=1", body)).status
                assert status in (200, 429, 507), status
            within_budget(server)
        answers(server)


def test_errors_that_nobody_reads_hold_little(tmp_path):
    body = repeated(b'{"filter":{"', b"k", b'":1}}', 1 << 20)
    with Server(tmp_path / "data", "48MiB") as server:
        collection(server, 10)
        unread = []
        for _ in range(64):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(30)
            sock.connect(("127.0.0.1", server.port))
            unread.append(sock)
            try:
                sock.sendall(request_bytes("POST", f"{POINTS}/count", body))
            except OSError:
                pass  # refused before all of it was sent
            time.sleep(0.05)
            within_budget(server)
        answers(server)
        within_budget(server)
        for sock in unread:
            sock.close()


def test_requests_that_were_given_up_keep_nobody_waiting_and_a_stop_ends_them(tmp_path):
    words = " ".join(f"w{n}" for n in range(40_000))
    body = json.dumps({"filter": {"must": [{"key": "t", "match": {"text_any": words}}]}, "exact": True}).encode()
    with Server(tmp_path / "data", "48MiB", options=("--drain-s", "4")) as server:
        collection(server, 20_000, lambda i: {"t": f"some words of point {i}"})
        for _ in range(20):
            send_and_leave(server, f"{POINTS}/count", body, 0.2)
        answers(server)
        kept = []
        for _ in range(20):
            kept.append(socket.create_connection(("127.0.0.1", server.port), 30))
            kept[-1].sendall(request_bytes("POST", f"{POINTS}/count?timeout=600", body))
        server.process.send_signal(signal.SIGTERM)
        try:
            assert server.process.wait(10) == 0, server.log_tail()
        except subprocess.TimeoutExpired:
            pytest.fail("it goes on 6 s after its requests had all the time that they get")
        finally:
            for sock in kept:
                sock.close()


def test_uploads_that_stall_keep_no_long_query_and_no_write_waiting(tmp_path):
    wide = [round(n / 1536 - 0.3, 17) for n in range(1536)]
    with Server(tmp_path / "data", "48MiB") as server:
        rest = Connection(server.port)
        rest.must("PUT", "/collections/wide", {"vectors": {"size": 1536, "distance": "Dot"}})
        head = b"PUT /collections/wide/points HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (1 << 20)
        stalled = []
        for _ in range(12):
            stalled.append(socket.create_connection(("127.0.0.1", server.port), 30))
            stalled[-1].sendall(head + b'{"points":')
        time.sleep(0.5)
        for method, path, body in [
            ("PUT", "/collections/wide/points?wait=true&timeout=20", {"points": [{"id": 1, "vector": wide}]}),
            ("POST", "/collections/wide/points/query?timeout=20", {"query": wide}),
        ]:
            assert len(json.dumps(body)) > 16 << 10
            began = time.monotonic()
            answer = Connection(server.port).ask(method, path, body)
            assert answer.status == 200, (path, answer.error)
            assert time.monotonic() - began < 8, path
        for sock in stalled:
            sock.close()


def alias(number):
    return f"{number:06}" + "a" * 234


def are_known(server, count):
    rest = Connection(server.port)
    for number in range(0, count, 997):
        assert rest.ask("GET", f"/collections/{alias(number)}").status == 200, number


def test_many_aliases_are_taken_or_refused_and_open_again_or_say_what_they_need(tmp_path):
    made, refused = 0, None
    with Server(tmp_path / "data", "48MiB") as server:
        rest = collection(server)
        while made < 45_056 and refused is None:
            actions = [{"create_alias": {"collection_name": NAME, "alias_name": alias(made + n)}} for n in range(1_024)]
            answer = rest.ask("POST", "/collections/aliases", {"actions": actions})
            assert answer.status in (200, 507), (made, answer.status, answer.error)
            made, refused = (made + 1_024, None) if answer.status == 200 else (made, answer.error)
        within_budget(server)
        assert made > 20_000 and (refused is None or re.search(r"\d", refused)), (made, refused)
        are_known(server, made)
        server.kill9()
    again = Server(tmp_path / "data", "24MiB")
    try:
        again.start()
        are_known(again, made)
    except StartError as error:
        assert again.process.returncode == 10 and re.search(r"at least [\d.]+ [KM]iB", str(error)), error
    finally:
        again.close()
    with Server(tmp_path / "data", "48MiB") as server:
        are_known(server, made)


@pytest.mark.parametrize("fixture", ["format-1", "format-2"])
def test_damage_that_a_scroll_meets_is_told(tmp_path, fixture):
    with tarfile.open(FIXTURES / f"{fixture}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    damaged = 0
    for segment in (tmp_path / "data").rglob("*.seg"):
        text = bytearray(segment.read_bytes())
        for at in range(0, len(text), 4096):
            if b"dish number" in text[at : at + 4096]:
                text[at + 100] ^= 0x55
                damaged += 1
        segment.write_bytes(text)
    assert damaged
    server = Server(tmp_path / "data", "32MiB", limited=False)
    try:
        # The build of an index may meet it before anybody asks.
        rest = Connection(server.start(until="/livez").port)
        for _ in range(2):
            answer = rest.ask("POST", "/collections/plain/points/scroll", {"limit": 1_000})
            assert answer.status == 500 and ".seg" in answer.error, (answer.status, answer.error)
        info = rest.ask("GET", "/collections/plain").result
        assert info["status"] == "red" and ".seg" in info["optimizer_status"]["error"], info
        ready = rest.get("/readyz")
        assert ready.status == 503 and b"plain" in ready.body, (ready.status, ready.body)
        # Others are well, and what is wrong is said once.
        assert rest.ask("POST", "/collections/named/points/scroll", {"limit": 100}).status == 200
        assert rest.ask("GET", "/collections/named").result["status"] != "red"
        said = [line for line in server.log.read_text().splitlines() if ".seg" in line and "ERROR" in line]
        assert len(said) == 1, said
    finally:
        server.close()


@pytest.mark.parametrize("damage", ["removed", "emptied", "shortened"])
def test_a_lost_file_of_the_log_is_refused(tmp_path, damage):
    server = Server(tmp_path / "data", "48MiB").start()
    try:
        rest = collection(server, 2_000, lambda i: {"n": i})
        rest.must("POST", f"{POINTS}/delete?wait=true", {"points": list(range(0, 2_000, 3))})
        server.kill9()
        newest = max(server.data.rglob("*.log"))
        whole = newest.read_bytes()
        newest.unlink() if damage == "removed" else newest.write_bytes(whole[: len(whole) // 2 if damage == "shortened" else 0])
        with pytest.raises(StartError) as refused:
            server.start()
        assert server.process.returncode == 7 and "log" in str(refused.value), refused.value
        checked = subprocess.run([binary(), "check", server.data], capture_output=True, text=True)
        assert checked.returncode == 7, checked.stdout + checked.stderr
    finally:
        server.close()


def test_a_folder_that_was_removed_takes_no_more(tmp_path):
    server = Server(tmp_path / "data", "48MiB").start()
    try:
        rest = collection(server, 10)
        shutil.rmtree(server.data)
        statuses = []
        for method, path, body in [
            ("PUT", "/collections/late", {"vectors": {"size": 4, "distance": "Dot"}}),
            ("PUT", f"{POINTS}?wait=true", {"points": [{"id": 99, "vector": [1, 0, 0, 0]}]}),
        ]:
            try:
                statuses.append(rest.ask(method, path, body).status)
            except OSError:
                statuses.append(None)  # it has ended
        assert 200 not in statuses, statuses
        assert server.process.wait(20) == 9
    finally:
        server.close()


def test_a_word_of_a_stemmer_costs_no_thread(tmp_path):
    greek = {"type": "text", "stemmer": {"type": "snowball", "language": "greek"}}
    with Server(tmp_path / "data", "48MiB") as server:
        hostile = ["ισαισαν", "ισαισε", "σκωφελετε", "αβρευθετε"]
        rest = collection(server)
        rest.must("PUT", f"/collections/{NAME}/index?wait=true", {"field_name": "t", "field_schema": greek})
        points = [{"id": i, "vector": [1, 0, 0, 0], "payload": {"t": word}} for i, word in enumerate([*hostile, "καλημερα"])]
        rest.must("PUT", f"{POINTS}?wait=true", {"points": points})
        for word, left in [("καλημερα", 4), ("σκωφελετε", 3)]:
            body = {"filter": {"must": [{"key": "t", "match": {"text": word}}]}}
            answer = Connection(server.port).ask("POST", f"{POINTS}/delete?wait=true&timeout=10", body)
            assert answer.status == 200, (word, answer.status, answer.error)
            assert Connection(server.port).must("POST", f"{POINTS}/count", {})["count"] == left
        write = {"points": [{"id": 77, "vector": [1, 0, 0, 0]}]}
        assert Connection(server.port, timeout=20).ask("PUT", f"{POINTS}?wait=true&timeout=10", write).status == 200
        assert rest.get("/readyz").status == 200


@pytest.mark.parametrize("schema", ["integer", None])
def test_a_filter_over_new_points_reads_nothing_or_says_what_it_reads(tmp_path, schema):
    asked = {"must": [{"key": "k", "match": {"value": 99_999}}]}
    with Server(tmp_path / "data", "64MiB") as server:
        rest = collection(server)
        if schema:
            rest.must("PUT", f"/collections/{NAME}/index?wait=true", {"field_name": "k", "field_schema": schema})
        points = [{"id": i, "vector": [1, 0, 0, 0], "payload": {"k": i, "t": "x" * 1_000}} for i in range(400)]
        rest.must("PUT", f"{POINTS}?wait=true", {"points": points})
        # The first one may bring in pages of the program itself.
        for _ in range(2):
            before = server.io()["read_bytes"]
            found = rest.must("POST", f"{POINTS}/query", {"query": [1, 0, 0, 0], "filter": asked, "profile": True})
            read = server.io()["read_bytes"] - before
        assert found["points"] == []
        if schema:
            assert read < 200_000 and found["profile"]["reads"] == 0, f"{read} bytes are read, though the index knows all"
        else:
            assert found["profile"]["reads"] > 0 and found["profile"]["read_bytes"] >= 400_000, found["profile"]


def test_texts_that_are_long_are_indexed_or_asked_without(tmp_path):
    with Server(tmp_path / "data", "48MiB") as server:
        rest = collection(server)
        for field, schema in [("t", "text"), ("a", "integer"), ("w", "keyword")]:
            rest.must("PUT", f"/collections/{NAME}/index", {"field_name": field, "field_schema": schema})
        text = " ".join(f"w{n}" for n in range(150_000))
        for i in range(24):
            payload = {"t": f"{text} point{i}"} if i % 2 else {"a": list(range(i, 60_000 + i)), "w": "some"}
            points = {"points": [{"id": i, "vector": [1, 0, 0, 0], "payload": payload}]}
            answer = rest.ask("PUT", f"{POINTS}?wait=true", points)
            assert answer.status == 200, (i, answer.error)
        for _ in range(20):
            for test, expected in [
                ({"key": "t", "match": {"text": "point7"}}, 1),
                ({"key": "a", "range": {"gte": 60_000 + 20}}, 1),
                ({"key": "w", "match": {"value": "some"}}, 12),
            ]:
                answer = rest.ask("POST", f"{POINTS}/count", {"filter": {"must": [test]}})
                assert answer.status == 200, (test, answer.status, answer.error)
                assert answer.result["count"] == expected, test
            time.sleep(0.25)
        within_budget(server)
