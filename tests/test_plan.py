"""Plans: their shape, that they agree with the ledger afterwards, and what they refuse."""

import json
import os
import subprocess

import numpy as np
import pytest

from harness.cgroup import MIB
from harness.rest import Connection, points_body, wait_green
from harness.server import binary

RANGES = {"bytes", "disk_bytes", "build_peak_bytes", "recall", "reads_per_query", "queries_per_second"}


def heaps(count: int, dim: int) -> np.ndarray:
    """Vectors in heaps; the first so many are the same whatever the count."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(100, dim))
    drawn = np.concatenate([centres[np.arange(1_000) % 100] + 0.4 * rng.normal(size=(1_000, dim)) for _ in range(-(-count // 1_000))])
    return drawn[:count].astype(np.float32)


def wanted(**more) -> dict:
    return {"collections": [{"points": 60_000, "vectors": {"size": 64, "distance": "Cosine"}, "payload_bytes": 0, **more}]}


def test_shape(rest):
    plan = rest.must("POST", "/memory/plan", wanted() | {"budget": "64MiB"})
    assert plan["fits"] is True and plan["least_budget"] < 64 * MIB
    for figures in [*plan["collections"], plan["total"]]:
        assert set(figures) >= RANGES | {"fits", "least_budget"}
        for field in RANGES:
            figure = figures[field]
            assert 0 <= figure["low"] <= figure["value"] <= figure["high"], (field, figure)
    small = rest.must("POST", "/memory/plan", wanted() | {"budget": "1MiB"})
    assert small["fits"] is False and small["least_budget"] > MIB
    many = rest.must("POST", "/memory/plan", wanted(points=100_000_000) | {"budget": "64MiB"})
    assert many["fits"] is False and many["total"]["least_budget"] > 100 * MIB


def test_refusals(rest):
    for body, status in [
        ({}, 400),
        ({"collections": [{"points": 1, "fields": {"a": {"type": "word"}}}]}, 400),
        ({"collections": [{"points": 10**10}]}, 422),
        (wanted() | {"budget": "64 apples"}, 422),
        (wanted() | {"sample": "/nowhere.npy"}, 404),
        (wanted() | {"sample": "/etc/passwd"}, 422),
    ]:
        answer = rest.ask("POST", "/memory/plan", body)
        assert answer.status == status and answer.error, (body, answer.status, answer.body)


def test_a_sample_that_is_no_plain_file_is_refused_and_plans_go_on(own_server, tmp_path):
    rest = Connection(own_server.port)
    pipe, device = tmp_path / "pipe.npy", tmp_path / "device.npy"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for sample in (pipe, device, tmp_path):
        answer = rest.ask("POST", "/memory/plan", wanted() | {"sample": str(sample)})
        assert answer.status == 422, (sample, answer.body)
    assert rest.must("POST", "/memory/plan", wanted())["total"]


def test_it_agrees_with_the_ledger(own_server):
    rest, vectors = Connection(own_server.port), heaps(60_000, 64)
    plan = rest.must("POST", "/memory/plan", wanted())
    rest.must("PUT", "/collections/c", {"vectors": {"size": 64, "distance": "Cosine"}})
    for first in range(0, len(vectors), 5_000):
        rest.must("PUT", "/collections/c/points?wait=true", json.loads(points_body(first, vectors[first : first + 5_000])))
    wait_green(rest, "c", 120)
    # At rest the widest codes have come in, too.
    expected = {line["name"].split("/")[1]: line["bytes"] for line in plan["structures"] if "/" in line["name"]}

    def held() -> dict:
        accounts = rest.must("GET", "/memory")["accounts"]
        return {account["name"].split("/")[2]: account["bytes"] for account in accounts if account["name"].startswith("vectors/c/")}

    for _ in range(100):
        if held().get("codes") and abs(held()["codes"] - expected["codes"]) <= 0.05 * expected["codes"]:
            break
        rest.must("POST", "/collections/c/points/query", {"query": vectors[0].tolist()})
        subprocess.run(["sleep", "0.2"], check=True)
    now = held()
    for structure in ("codes", "centroids"):
        assert abs(now[structure] - expected[structure]) <= 0.05 * expected[structure] + 64 * 1024, (structure, now, expected)


@pytest.mark.parametrize("where", ["server", "command line"])
def test_a_sample_narrows_the_ranges(own_server, tmp_path, where):
    sample = tmp_path / "sample.npy"
    np.save(sample, heaps(6_000, 64))
    if where == "server":
        rest = Connection(own_server.port)
        blind = rest.must("POST", "/memory/plan", wanted())["total"]
        plan = rest.must("POST", "/memory/plan", wanted() | {"sample": str(sample)})["total"]
        ledger = rest.must("GET", "/memory")
        assert not [account for account in ledger["accounts"] if account["name"] == "plan" and account["bytes"]]
        assert not list((own_server.data / "temp" / "plan").glob("*"))
    else:
        flags = ["--points", "60000", "--dim", "64", "--memory", "48MiB", "--data", str(tmp_path), "--json"]
        run = lambda *more: json.loads(subprocess.run([binary(), "plan", *flags, *more], capture_output=True, check=True).stdout)  # noqa: E731
        blind, plan = run()["total"], run("--sample", str(sample))["total"]

    def width(of: dict) -> float:
        return of["queries_per_second"]["high"] / max(of["queries_per_second"]["low"], 1)

    assert width(plan) < 2 < width(blind)
    assert plan["recall"]["high"] - plan["recall"]["low"] <= 0.021


def test_a_curve_is_drawn(tmp_path):
    svg = tmp_path / "curve.svg"
    command = [binary(), "plan", "--points", "1000000", "--dim", "100", "--curve", "--svg", str(svg), "--data", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.count("MiB") > 12 and "queries/s" in told
    assert svg.read_text().startswith("<svg")
