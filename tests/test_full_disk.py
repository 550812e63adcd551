"""A file system of its own that is filled to the last byte: deletes and reads go on, a start succeeds, and room comes back."""

import time

import numpy as np
import pytest

from harness.rest import Connection, points_body, request_bytes
from harness.server import Server
from harness.small_disk import fill_to_the_last_byte, small_disk

DIM = 64
BATCH = 500
NAME = "points"


class Points:
    """What was acknowledged."""

    def __init__(self, server):
        self.server, self.rng, self.live, self.next = server, np.random.default_rng(3), set(), 0
        self.connection = Connection(server.port)

    def ask(self, method, path, body=None):
        return self.connection.ask(method, f"/collections/{NAME}{path}", body)

    def upsert(self):
        ids = range(self.next, self.next + BATCH)
        self.next += BATCH
        payloads = [{"n": i, "text": "some words of no meaning " * 4} for i in ids]
        body = points_body(ids[0], self.rng.standard_normal((BATCH, DIM)).astype(np.float32), payloads)
        answer = self.connection.send(request_bytes("PUT", f"/collections/{NAME}/points?wait=true", body))
        if answer.status == 200:
            self.live.update(ids)
        return answer

    def delete(self, body, ids):
        answer = self.ask("POST", "/points/delete?wait=true", body)
        assert answer.status == 200, answer.error
        self.live -= set(ids)

    def delete_ids(self, ids):
        self.delete({"points": list(ids)}, ids)

    def delete_below(self, bound):
        self.delete({"filter": {"must": [{"key": "n", "range": {"lt": bound}}]}}, {i for i in self.live if i < bound})

    def holds(self):
        seen, offset = set(), None
        while True:
            page = self.ask("POST", "/points/scroll", {"limit": 5000, "with_payload": False, "offset": offset}).result
            seen.update(point["id"] for point in page["points"])
            offset = page["next_page_offset"]
            if offset is None:
                break
        assert seen == self.live, f"{len(seen - self.live)} too many, {len(self.live - seen)} missing"
        found = self.ask("POST", "/points/query", {"query": [1.0] * DIM, "limit": 5})
        assert found.status == 200 and len(found.result["points"]) == 5

    def ready(self):
        return self.connection.get("/readyz")

    def waits(self, what, is_so, limit_s=60):
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, f"{what}: {self.ready().body}\n{self.server.log_tail()}"
            time.sleep(0.05)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_full_disk_can_be_lived_with(tmp_path, kind):
    with small_disk(tmp_path, kind) as folder:
        server = Server(folder / "data", "48MiB", limited=kind == "ext4", log=tmp_path / "log").start()
        try:
            live_on_a_full_disk(server, folder)
        finally:
            server.close()


def live_on_a_full_disk(server, folder):
    points = Points(server)
    points.connection.must("PUT", f"/collections/{NAME}", {"vectors": {"size": DIM, "distance": "Dot"}})
    points.connection.must("PUT", f"/collections/{NAME}/index?wait=true", {"field_name": "n", "field_schema": "integer"})
    for _ in range(30):
        assert points.upsert().status == 200
    fill_to_the_last_byte(folder)
    points.waits("a write is refused", lambda: points.upsert().status == 507)
    points.waits("it stays so", lambda: all(points.upsert().status == 507 for _ in range(20)))
    refused = points.upsert()
    assert "the disk is full" in refused.error and "MiB must be free" in refused.error, refused.error
    ready = points.ready()
    assert ready.status == 503 and b"full" in ready.body
    assert points.ask("GET", "").result["status"] != "red"
    points.holds()
    # One at a time and many: each delete is a commit of its own.
    for i in sorted(points.live)[:400]:
        points.delete_ids([i])
    points.delete_ids(sorted(points.live)[:3000])
    points.holds()
    # A start without a byte.
    server.kill9()
    fill_to_the_last_byte(folder)
    server.start(until="/livez")
    points.connection = Connection(server.port)
    points.holds()
    for i in sorted(points.live)[:400]:
        points.delete_ids([i])
    points.delete_below(sorted(points.live)[1000])
    points.holds()
    server.kill9()
    server.start(until="/livez")
    points.connection = Connection(server.port)
    points.holds()
    # Room from outside ends it, without a write.
    (folder / "junk").unlink()
    points.waits("room again is noticed", lambda: points.ready().status == 200, 10)
    assert points.upsert().status == 200
    # Room from deletes ends it, too.
    fill_to_the_last_byte(folder)
    points.waits("a write is refused", lambda: all(points.upsert().status == 507 for _ in range(5)))
    points.delete_below(sorted(points.live)[-1000])
    points.waits("deletes give room", lambda: points.upsert().status == 200)
    points.holds()
    assert points.ask("DELETE", "").status == 200
    points.waits("nothing is left", lambda: points.ready().status == 200)
