"""Budgets near the least one: what is new is written out before it fills all memory, and a budget may shrink under it."""

import gzip
import json
import random
import socket
import threading
import time
from collections import Counter

import pytest

from harness.rest import Connection
from harness.server import Server

DIM = 32


def upsert(rest, name, first, count, rng):
    points = [{"id": first + at, "vector": rng.normal(size=DIM).tolist()} for at in range(count)]
    return rest.ask("PUT", f"/collections/{name}/points?wait=true", {"points": points})


@pytest.mark.parametrize("collections", [1, 30])
def test_the_least_budget_takes_writes(tmp_path, rng, collections):
    with Server(tmp_path / "data", "24MiB") as server:
        rest = Connection(server.port)
        for number in range(collections):
            rest.ask("PUT", f"/collections/c{number}", {"vectors": {"size": DIM, "distance": "Dot"}})
        for turn in range(60):
            answer = upsert(rest, f"c{turn % collections}", turn * 200, 200, rng)
            assert answer.status == 200, answer.body
        counts = [rest.ask("POST", f"/collections/c{number}/points/count", {}).result["count"] for number in range(collections)]
        assert sum(counts) == 60 * 200


def test_a_budget_shrinks_below_what_is_new(tmp_path, rng):
    with Server(tmp_path / "data", "96MiB") as server:
        rest = Connection(server.port)
        rest.ask("PUT", "/collections/c", {"vectors": {"size": DIM, "distance": "Dot"}})
        for first in range(0, 20_000, 500):
            assert upsert(rest, "c", first, 500, rng).status == 200
        assert rest.ask("PUT", "/memory", {"budget": "24MiB"}).status in (200, 202)
        for first in range(20_000, 22_000, 200):
            answer = upsert(rest, "c", first, 200, rng)
            assert answer.status == 200, answer.body
        assert rest.ask("POST", "/collections/c/points/count", {}).result["count"] == 22_000


def test_payloads_change_while_new_points_hold_all_their_memory(tmp_path, rng):
    with Server(tmp_path / "data", "48MiB") as server:
        rest = Connection(server.port)
        for number in range(130):
            rest.ask("PUT", f"/collections/c{number}", {"vectors": {"size": DIM, "distance": "Dot"}})
            assert upsert(rest, f"c{number}", 1, 1, rng).status == 200
        for number in range(130):
            change = {"payload": {"a": number}, "points": [1]}
            answer = rest.ask("POST", f"/collections/c{number}/points/payload?wait=true", change)
            assert answer.status == 200, answer.body


FIELDS = [("w", "keyword"), ("n", "integer"), ("f", "float"), ("t", "text"), ("d", "datetime"), ("arr", "integer")]


def rich_points(draw, count):
    """Points with a value for each of the fields, and now and then a payload of many KB."""
    for _ in range(count):
        payload = {"w": draw.choice("abcd"), "n": draw.randrange(50), "f": draw.random(), "t": "quick brown fox", "d": f"20{draw.randrange(10, 99)}-01-01T00:00:00Z", "arr": [1, 2, draw.randrange(9)]}
        if draw.random() < 0.05:
            payload["big"] = "z" * draw.randrange(40_000)
        yield {"id": draw.randrange(3_000), "vector": [float(draw.randrange(-8, 8)) for _ in range(8)], "payload": payload}


def rich_write(rest, draw):
    """Points, a change by filter, or a delete by filter, in one of three collections."""
    points, kind = f"/collections/c{draw.randrange(3)}/points", draw.random()
    if kind < 0.7:
        return rest.ask("PUT", points, {"points": list(rich_points(draw, 400))})
    if kind < 0.85:
        changed = {"must": [{"key": "w", "match": {"value": draw.choice("abcd")}}]}
        return rest.ask("POST", f"{points}/payload", {"payload": {"s": draw.randrange(10**6)}, "filter": changed})
    return rest.ask("POST", f"{points}/delete", {"filter": {"must": [{"key": "n", "match": {"value": draw.randrange(50)}}]}})


@pytest.mark.parametrize("seed", [2, 3])
def test_new_points_merges_and_indexes_share_the_least_budget(tmp_path, seed):
    """Nothing that one of them holds keeps another waiting for good: each write is done within its timeout."""
    draw = random.Random(seed)
    with Server(tmp_path / "data", "24MiB") as server:
        rest = Connection(server.port)
        for name in ("c0", "c1", "c2"):
            rest.ask("PUT", f"/collections/{name}", {"vectors": {"size": 8, "distance": "Dot"}})
            for field, kind in FIELDS:
                rest.ask("PUT", f"/collections/{name}/index", {"field_name": field, "field_schema": kind})
        for step in range(100):
            answer = rich_write(rest, draw)
            assert answer.status == 200, (step, answer.body)
        assert server.peak() <= server.budget
        server.kill9()
        server.start()
        assert rest.ask("PUT", "/collections/c0/points?wait=true", {"points": list(rich_points(draw, 400))}).status == 200


HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"
SOON_S = 20.0  # less than what a request waits for memory, and more than any of these takes


def points_text(size):
    """A body of points of about that many bytes."""
    one = '{"id":%d,"vector":[' + ",".join(["0.123456"] * DIM) + "]}"
    return ('{"points":[' + ",".join(one % n for n in range(size // (len(one) + 4))) + "]}").encode()


def send_points(port, text, encoding=""):
    coded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
    head = f"PUT /collections/c/points?wait=true HTTP/1.1\r\n{HEAD}{coded}Content-Length: {len(text)}\r\n\r\n"
    connection, began = Connection(port, timeout=120), time.monotonic()
    try:
        answer = connection.send(head.encode() + text)
    finally:
        connection.close()
    return answer, time.monotonic() - began


def small_requests(port):
    """What must always have a thread and bytes, each on a connection of its own: statuses, and the longest that one took."""
    slowest, statuses = 0.0, []
    query = {"query": [0.5] * DIM, "limit": 3}
    for method, path, body in [
        *(("GET", path, None) for path in ("/healthz", "/readyz", "/memory", "/collections")),
        ("POST", "/collections/c/points/query", query),
    ]:
        connection, began = Connection(port, timeout=60), time.monotonic()
        statuses.append(connection.ask(method, path, body).status)
        connection.close()
        slowest = max(slowest, time.monotonic() - began)
    return statuses, slowest


@pytest.fixture
def smallest(tmp_path):
    with Server(tmp_path / "data", "24MiB") as server:
        Connection(server.port).must("PUT", "/collections/c", {"vectors": {"size": DIM, "distance": "Dot"}})
        yield server


def test_stalled_headers_keep_nobody_out_of_the_smallest_server(smallest):
    stalled = []
    for _ in range(500):
        stalled.append(socket.create_connection(("127.0.0.1", smallest.port)))
        stalled[-1].sendall(b"GET /healthz HTTP/1.1\r\nHo")
    statuses, slowest = small_requests(smallest.port)
    assert statuses == [200] * 5
    assert slowest < SOON_S
    assert smallest.peak() <= smallest.budget
    for one in stalled:
        one.close()


@pytest.mark.parametrize("encoding", ["gzip", ""])
def test_uploads_side_by_side_keep_no_small_request_out(smallest, encoding):
    text = points_text(1 << 20)
    text = gzip.compress(text, 1) if encoding else text
    outcomes = []
    uploads = [threading.Thread(target=lambda: outcomes.append(send_points(smallest.port, text, encoding)[0].status)) for _ in range(60)]
    for upload in uploads:
        upload.start()
    while not outcomes:
        statuses, slowest = small_requests(smallest.port)
        assert statuses == [200] * 5
        assert slowest < SOON_S
    for upload in uploads:
        upload.join()
    counts = Counter(outcomes)
    assert set(counts) <= {200, 429}, counts
    assert counts[200] > 20, counts
    assert smallest.peak() <= smallest.budget


@pytest.mark.parametrize("encoding", ["gzip", ""])
def test_a_body_is_taken_or_refused_at_once_by_a_server_that_does_nothing_else(smallest, encoding):
    most = smallest.budget // 4
    for share in (2, 5, 8, 10, 12, 14, 15, 17, 30):  # sixteenths of the limit
        text = points_text(most * share // 16)
        answer, took = send_points(smallest.port, gzip.compress(text, 1) if encoding else text, encoding)
        expected = {413} if share > 16 else {200} if share <= 5 else {200, 507}
        assert answer.status in expected, (share, answer.status, answer.error)
        assert took < SOON_S, (share, answer.status)
        if answer.status == 507:
            assert "MiB needed, of 24.0 MiB at most" in answer.error, answer.error
    # A bomb holds nothing while it is found out.
    bomb = gzip.compress(b" " * (256 << 20), 1)
    assert send_points(smallest.port, bomb, "gzip")[0].status == 413
    assert json.loads(Connection(smallest.port).get("/memory").body)["result"]["peak_bytes"] <= smallest.budget


def test_a_payload_that_is_larger_as_a_tree_than_all_memory_is_read_whole_and_refused_in_parts(tmp_path):
    with Server(tmp_path / "data", "24MiB") as server:
        rest = Connection(server.port)
        rest.ask("PUT", "/collections/c", {"vectors": {"size": 2, "distance": "Dot"}})

        def put(id, payload):
            points = {"points": [{"id": id, "vector": [1.0, 0.0], "payload": payload}]}
            return rest.ask("PUT", "/collections/c/points?wait=true", points).status

        def get(id, what):
            return rest.ask("POST", "/collections/c/points", {"ids": [id], "with_payload": what})

        def change(id, body):
            return rest.ask("POST", "/collections/c/points/payload?timeout=5", {**body, "points": [id]})

        assert put(1, {"a": [0] * 300_000}) == 200
        assert put(2, {"a": [{}] * 20_000}) == 200
        assert len(get(1, True).result[0]["payload"]["a"]) == 300_000
        for answer in [get(1, {"exclude": ["b"]}), get(1, ["a[0]"]), change(1, {"payload": {"b": 1}}), change(2, {"payload": {"b": "x" * 50_000}, "key": "a[]"})]:
            assert answer.status == 507 and "can be free" in answer.error, (answer.status, answer.error)
        assert get(2, ["b"]).result[0]["payload"] == {}
        assert rest.ask("POST", "/collections/c/points/payload/clear", {"points": [1]}).status == 200
        assert get(1, ["a"]).result[0]["payload"] == {}
        assert server.alive() and server.peak() <= server.budget


@pytest.mark.parametrize("budget", ["24MiB", "32MiB", "48MiB"])
@pytest.mark.parametrize("size", [7_000, 35_000, 60_000])
def test_a_collection_that_never_fits_is_refused_for_good_at_once(tmp_path, budget, size):
    with Server(tmp_path / "data", budget) as server:
        rest = Connection(server.port)
        for number in range(10_000):
            config = {"vectors": {"size": 4, "distance": "Dot"}, "metadata": {"text": f"{number:06}" + "m" * size}}
            answer = rest.ask("PUT", f"/collections/c{number}?timeout=1", config)
            if answer.status != 200:
                break
        # Whoever asks holds its own body, connection and answer, and does not wait for them to be given back.
        assert answer.status == 507 and "no room for more collections" in answer.error, (number, answer.status, answer.body)
        assert server.alive() and server.peak() <= server.budget


def indexed_collection(rest, name, dim, fields, wait_s=20):
    answer = rest.ask("PUT", f"/collections/{name}?timeout={wait_s}", {"vectors": {"size": dim, "distance": "Dot"}})
    assert answer.status == 200, answer.body
    for field, schema in fields:
        assert rest.ask("PUT", f"/collections/{name}/index?wait=true", {"field_name": field, "field_schema": schema}).status == 200


def batch(draw, rng, dim, count, ids=30_000):
    text = lambda: " ".join(f"w{draw.randrange(30)}" for _ in range(6))
    payload = lambda at: {"n": at, "w": f"k{draw.randrange(8)}", "tag": draw.random() < 0.5, "text": text(), "pad": "z" * draw.randrange(60)}
    return [{"id": at, "vector": rng.normal(size=dim).tolist(), "payload": payload(at)} for at in draw.sample(range(ids), count)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_small_collections_leave_room_for_the_next(tmp_path, rng, seed):
    draw = random.Random(seed)
    with Server(tmp_path / "data", "24MiB") as server:
        rest = Connection(server.port, timeout=60)
        for number in range(5):
            dim = 64 + 64 * (number % 2)
            indexed_collection(rest, f"c{number}", dim, [("n", "integer"), ("w", "keyword")], wait_s=2)
            for _ in range(8):
                answer = rest.ask("PUT", f"/collections/c{number}/points?wait=true", {"points": batch(draw, rng, dim, 250)})
                assert answer.status == 200, answer.body
            # The store lies down, and lends what it has for writes.
            time.sleep(5)
            page = rest.ask("POST", f"/collections/c{number}/points/scroll", {"limit": 300, "with_vector": True, "with_payload": True})
            assert page.status == 200 and len(page.result["points"]) == 300, page.body


@pytest.mark.parametrize("rows", [2_000, 4_000, 8_000])
def test_points_that_were_written_with_more_memory_make_way_for_names_at_a_start(tmp_path, rng, rows):
    draw = random.Random(rows)
    with Server(tmp_path / "data", "64MiB") as server:
        rest = Connection(server.port, timeout=60)
        indexed_collection(rest, "c", 48, [("n", "integer"), ("w", "keyword"), ("text", "text")])
        for _ in range(rows // 250):
            assert rest.ask("PUT", "/collections/c/points", {"points": batch(draw, rng, 48, 250, ids=4_000)}).status == 200
        for number in range(6):
            indexed_collection(rest, f"empty{number}", 4, [])
        counted = rest.ask("POST", "/collections/c/points/count", {}).result["count"]
        server.kill9()
    with Server(tmp_path / "data", "24MiB") as server:
        rest = Connection(server.port, timeout=60)
        assert rest.ask("POST", "/collections/c/points/count", {}).result["count"] == counted
        assert len(rest.ask("GET", "/collections").result["collections"]) == 7
