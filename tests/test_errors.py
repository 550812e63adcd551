"""Refusals: the status of each kind of mistake, the shape of the answer, and that the server goes on."""

import json
import socket

import pytest

from harness.rest import Connection, request_bytes


@pytest.fixture
def collection(rest, name):
    rest.must("PUT", f"/collections/{name}", {"vectors": {"size": 4, "distance": "Dot"}})
    rest.must("PUT", f"/collections/{name}/points?wait=true", {"points": [{"id": 1, "vector": [1, 0, 0, 0]}]})
    return f"/collections/{name}"


def shape(answer):
    body = answer.json()
    assert isinstance(body["status"]["error"], str) and body["status"]["error"], body
    assert body["time"] >= 0
    return body["status"]["error"]


BAD = [
    # method, path below the collection, body, status, a word that the message must hold
    ("PUT", "/points", '{"points": [', 400, ""),
    ("PUT", "/points", '{"points": 5}', 400, "points"),
    ("PUT", "/points", "{}", 400, ""),
    ("PUT", "/points", '{"points": [{"id": 1}]}', 400, "vector"),
    ("PUT", "/points", '{"points": [{"id": -1, "vector": [1,2,3,4]}]}', 400, "id"),
    ("PUT", "/points", '{"points": [{"id": 1.5, "vector": [1,2,3,4]}]}', 400, "id"),
    ("PUT", "/points", '{"points": [{"id": "not-a-uuid", "vector": [1,2,3,4]}]}', 400, ""),
    ("PUT", "/points", '{"points": [{"id": 1, "vector": [1,2,3]}]}', 400, "dimension"),
    ("PUT", "/points", '{"points": [{"id": 1, "vector": ["a",2,3,4]}]}', 400, ""),
    ("PUT", "/points", '{"points": [{"id": 1, "vector": {"other": [1,2,3,4]}}]}', 400, "other"),
    ("PUT", "/points", '{"points": [{"id": 1, "vector": [1,2,3,4], "payload": 3}]}', 400, "payload"),
    ("PUT", "/points", '{"batch": {"ids": [1,2], "vectors": [[1,2,3,4]]}}', 422, ""),
    ("PUT", "/points?wait=perhaps", '{"points": [{"id": 1, "vector": [1,2,3,4]}]}', 400, "wait"),
    ("PUT", "/points?ordering=sideways", '{"points": [{"id": 1, "vector": [1,2,3,4]}]}', 400, "ordering"),
    ("POST", "/points/query", '{"query": [1,2,3]}', 400, "dimension"),
    ("POST", "/points/query", '{"query": [1,2,3,4], "limit": 0}', 422, "limit"),
    ("POST", "/points/query", '{"query": [1,2,3,4], "limit": -3}', 400, "limit"),
    ("POST", "/points/query", '{"query": [1,2,3,4], "limit": "ten"}', 400, "limit"),
    ("POST", "/points/query", '{"query": [1,2,3,4], "using": "nothing"}', 400, "nothing"),
    ("POST", "/points/query", '{"query": 999999}', 404, "999999"),
    ("POST", "/points/scroll", '{"limit": 0}', 422, "limit"),
    ("POST", "/points", '{"ids": "all"}', 400, "ids"),
    ("POST", "/points/delete", '{"nothing": []}', 400, ""),
    ("GET", "/points/xyz", "", 400, ""),
    ("GET", "/points/424242", "", 404, ""),
    ("POST", "/facet", '{"key": "a"}', 400, "index"),
    ("GET", "/snapshots", "", 501, "snapshots"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "word"), BAD, ids=[f"{b[0]}{b[1]} {b[2][:50]}" for b in BAD])
def test_bad_requests(rest, collection, method, path, body, status, word):
    answer = rest.send(request_bytes(method, collection + path, body.encode()))
    assert answer.status == status, answer.body
    assert word.lower() in shape(answer).lower()
    assert rest.must("POST", f"{collection}/points/count", {})["count"] == 1


CREATE = [
    ('{"vectors": {"size": 0, "distance": "Dot"}}', 422, "size"),
    ('{"vectors": {"size": 70000, "distance": "Dot"}}', 422, "size"),
    ('{"vectors": {"size": 4, "distance": "Sideways"}}', 400, "distance"),
    ('{"vectors": {"distance": "Dot"}}', 400, "size"),
    ('{"vectors": {"size": "four", "distance": "Dot"}}', 400, "size"),
    ('{"vectors": {"size": 4, "distance": "Dot"}, "recall": 2}', 422, "recall"),
    ("", 400, ""),
    ("[]", 400, ""),
]


@pytest.mark.parametrize(("body", "status", "word"), CREATE)
def test_bad_collections(rest, body, status, word):
    answer = rest.send(request_bytes("PUT", "/collections/never-made", body.encode()))
    assert answer.status == status, answer.body
    assert word in shape(answer)
    assert rest.get("/collections/never-made").status == 404


def test_no_such_collection(rest):
    for method, path, body in [
        ("GET", "", None),
        ("PUT", "/points", {"points": [{"id": 1, "vector": [1]}]}),
        ("POST", "/points/query", {"query": [1]}),
        ("POST", "/points/scroll", {}),
        ("POST", "/points/count", {}),
        ("POST", "/points/delete", {"points": [1]}),
    ]:
        answer = rest.ask(method, f"/collections/is-not-there{path}", body)
        assert answer.status == 404, (method, path, answer.body)
        assert "is-not-there" in shape(answer)


def test_names_that_are_parts_of_paths_are_refused(rest):
    """Clients that tidy paths could not reach them."""
    for name in ("%2E", "%2E%2E", "a%2Fb"):
        answer = rest.ask("PUT", f"/collections/{name}", {"vectors": {"size": 4, "distance": "Dot"}})
        assert answer.status == 422 and "collection_name" in shape(answer), (name, answer.body)


def test_no_such_path(rest):
    assert rest.get("/nothing/here").status == 404
    assert rest.ask("DELETE", "/healthz").status in (404, 405)


def test_unknown_fields_are_ignored(rest, collection):
    body = {"query": [1, 0, 0, 0], "limit": 1, "no_such_field": {"a": 1}}
    assert rest.must("POST", f"{collection}/points/query", body)["points"][0]["id"] == 1


def test_too_large_is_413_and_the_connection_or_the_next_one_works(server, collection):
    size = 16 << 20  # over a quarter of the budget
    connection = Connection(server.port)
    try:
        answer = connection.send(request_bytes("PUT", f"{collection}/points", b'{"points": [' + b" " * size))
        assert answer.status == 413
        shape(answer)
    except OSError:
        pytest.fail("the refusal was not readable")
    finally:
        connection.close()
    assert Connection(server.port).get("/healthz").status == 200


def test_nesting_without_end(rest, collection):
    deep = b'{"points":[{"id":2,"vector":[1,2,3,4],"payload":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
    answer = rest.send(request_bytes("PUT", f"{collection}/points", deep))
    assert answer.status in (400, 422), answer.body
    shape(answer)


@pytest.mark.parametrize("raw", [b"\x00" * 100, b"GET\r\n\r\n", b"PUT / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5_000 + b"\r\n"])
def test_bytes_that_are_no_http(server, raw):
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        try:
            # The server may refuse and hang up before all of it was sent.
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            first = sock.recv(4096)
        except OSError:
            first = b""
    assert not first or first.startswith(b"HTTP/1.1 4")
    assert Connection(server.port).get("/healthz").status == 200


def test_service_paths(rest):
    root = rest.get("/").json()
    assert root["version"] == "1.19.0" and sorted(root) == ["commit", "title", "version"]
    for path in ("/healthz", "/livez", "/readyz"):
        assert rest.get(path).status == 200
    assert rest.get("/telemetry").status == 200
    metrics = rest.get("/metrics")
    assert metrics.status == 200 and b"# TYPE" in metrics.body
    assert json.loads(rest.get("/collections").body)["status"] == "ok"


def test_keys(tmp_path):
    from harness.server import Server

    options = ("--api-key", "all", "--read-only-api-key", "look")
    server = Server(tmp_path / "data", "32MiB", options=options)
    try:
        server.start()
    except Exception:  # noqa: BLE001 - readiness may itself ask for a key; that is what would be wrong
        server.close()
        raise

    def status(method, path, key=None, body=None):
        raw = b"" if body is None else json.dumps(body).encode()
        request = request_bytes(method, path, raw)
        if key:
            request = request.replace(b"\r\n", f"\r\napi-key: {key}\r\n".encode(), 1)
        return Connection(server.port).send(request).status

    create = {"vectors": {"size": 2, "distance": "Dot"}}
    assert status("GET", "/collections") == 401
    assert status("GET", "/collections", "wrong") in (401, 403)
    assert status("GET", "/collections", "look") == 200
    assert status("PUT", "/collections/a", "look", create) == 403
    assert status("PUT", "/collections/a", "all", create) == 200
    assert status("POST", "/collections/a/points/query", "look", {"query": [1, 2]}) == 200
    assert status("GET", "/healthz") == 200
    assert server.stop() == 0
    server.close()


def test_a_client_on_this_machine_makes_segments_as_on_ethernet(server):
    """Larger ones are half of the largest window that was ever offered, and the sender waits for a timer where less is offered later."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1440
