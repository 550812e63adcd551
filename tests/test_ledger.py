"""The ledger: its shape, that it adds up, and that the budget can be moved."""

import subprocess

import pytest
from qdrant_client import models

from harness.cgroup import MIB
from harness.server import binary

FIELDS = {"budget_bytes", "charged_bytes", "peak_bytes", "unaccounted_bytes", "pressure", "accounts"}


def test_shape(server, rest):
    body = rest.get("/memory").json()
    assert body["status"] == "ok" and body["time"] >= 0
    ledger = body["result"]
    assert set(ledger) >= FIELDS
    assert ledger["budget_bytes"] == server.budget
    assert ledger["pressure"] in ("calm", "tight", "full")
    names = [account["name"] for account in ledger["accounts"]]
    assert len(names) == len(set(names)) and "base" in names
    for account in ledger["accounts"]:
        assert account["bytes"] >= 0 and account["predicted_bytes"] >= 0 and account["formula"] is not None


def test_it_adds_up(server, rest, client, name, rng):
    # Of a server in use: a fresh one has not touched all that it has booked.
    client.create_collection(name, vectors_config=models.VectorParams(size=32, distance=models.Distance.DOT))
    for first in range(0, 8_000, 1_000):
        ids = list(range(first, first + 1_000))
        client.upsert(name, models.Batch(ids=ids, vectors=rng.normal(size=(1_000, 32)).tolist()), wait=True)
    client.query_points(name, query=rng.normal(size=32).tolist(), limit=10)
    ledger = rest.get("/memory").json()["result"]
    booked = sum(account["bytes"] for account in ledger["accounts"])
    assert booked + ledger["unaccounted_bytes"] == ledger["charged_bytes"]
    assert ledger["charged_bytes"] <= ledger["budget_bytes"]
    assert abs(ledger["unaccounted_bytes"]) <= 0.05 * ledger["budget_bytes"]


def test_it_agrees_with_the_kernel(server, rest):
    if server.cgroup is None:
        pytest.skip("no memory cgroup may be made here")
    assert abs(rest.get("/memory").json()["result"]["charged_bytes"] - server.cgroup.usage()) <= 2 * MIB


def test_for_people(server):
    shown = subprocess.run([binary(), "memory", server.url], capture_output=True, text=True, check=True).stdout
    assert "base" in shown and "budget" in shown.lower() and "48" in shown


def test_moving_the_budget(own_server):
    from harness.rest import Connection

    rest = Connection(own_server.port)
    answer = rest.ask("PUT", "/memory", {"budget": "40MiB"})
    assert answer.status in (200, 202), answer.body
    assert rest.get("/memory").result["budget_bytes"] == 40 * MIB
    assert rest.ask("PUT", "/memory", {"budget": "1MiB"}).status == 422
    assert rest.ask("PUT", "/memory", {"budget": "100TiB"}).status == 422
    assert rest.ask("PUT", "/memory", {"budget": "many"}).status in (400, 422)
    assert rest.ask("PUT", "/memory", {"budget": "48MiB"}).status == 200


def test_a_series_for_each_account(rest):
    accounts = [account["name"] for account in rest.get("/memory").json()["result"]["accounts"]]
    metrics = rest.get("/metrics").body.decode()
    for name in accounts:
        assert f'"{name}"' in metrics, name
