"""Budgets near the least one: what is new is written out before it fills all memory, and a budget may shrink under it."""

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
