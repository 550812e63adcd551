"""This server beside an older one, on the same work in turn: what became slower?

    each round: older, this (the other way round in every second one) ─► upload │ index │ searches │ reads │ writes
    ─► of each kind the ratio of a round's two rates ─► median, and how far up it may lie (95 of 100 redrawn medians)

The first round warms up and is not counted.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bench.client import query_request, upload_request  # noqa: E402
from bench.report import Report  # noqa: E402
from harness import light  # noqa: E402
from harness.rest import Connection, request_bytes, wait_green  # noqa: E402
from harness.server import Server  # noqa: E402

DIM = 100
NAME = "bench"


def vectors(count: int, seed: int) -> np.ndarray:
    """Clustered, as texts are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(256, DIM))
    made = centres[rng.integers(256, size=count)] + 0.7 * rng.normal(size=(count, DIM))
    return made.astype(np.float32)


def asked(path: str, body) -> bytes:
    return request_bytes("POST", f"/collections/{NAME}/points{path}", json.dumps(body).encode())


def one_by_one(port: int, count: int, request) -> float:
    connection = Connection(port)
    begun = time.perf_counter()
    for number in range(count):
        answer = connection.send(request(number))
        assert answer.status == 200, answer.error
    return count / (time.perf_counter() - begun)


def work(binary: Path, data: Path, base: np.ndarray, queries: np.ndarray, seconds: float) -> dict[str, float]:
    os.environ["RAMEKIN_BIN"] = str(binary)
    folder = data / f"paired-{binary.name}"
    shutil.rmtree(folder, ignore_errors=True)
    rates: dict[str, float] = {}
    uploads = [upload_request(at, base[at : at + 2000], NAME) for at in range(0, len(base), 2000)]
    try:
        with Server(folder, "128MiB") as server:
            connection = Connection(server.port, timeout=600)
            connection.must("PUT", f"/collections/{NAME}", {"vectors": {"size": DIM, "distance": "Cosine"}})
            begun = time.perf_counter()
            for request in uploads:
                while (answer := connection.send(request)).status == 429:
                    time.sleep(0.01)
                assert answer.status == 200, answer.error
            rates["upload, points/s"] = len(base) / (time.perf_counter() - begun)
            wait_green(connection, NAME, 600, every_s=0.02)
            rates["until green, points/s"] = len(base) / (time.perf_counter() - begun)

            def load(requests: list[bytes]) -> float:
                seen = light.run(data, server.port, requests, 2, seconds)
                assert set(seen["statuses"]) == {"200"}, seen["statuses"]
                return seen["per_second"]

            rates["searches/s"] = load([query_request(query, NAME) for query in queries])
            some = [random.Random(number).sample(range(len(base)), 10) for number in range(500)]
            rates["reads of 10 points/s"] = load([asked("", {"ids": ids, "with_vector": True}) for ids in some])
            rates["scrolls/s"] = load([asked("/scroll", {"limit": 20, "offset": number * 7}) for number in range(500)])
            new = vectors(2000, 9)
            rates["one-point upserts/s"] = one_by_one(
                server.port, int(300 * seconds), lambda number: upload_request(len(base) + number % 2000, new[number % 2000 : number % 2000 + 1], NAME).replace(b"wait=false", b"wait=true")
            )
            payload = [asked("/payload?wait=true", {"payload": {"n": number}, "points": [number]}) for number in range(500)]
            rates["one-point payloads/s"] = one_by_one(server.port, int(300 * seconds), lambda number: payload[number % 500])
            rates["searches with new points/s"] = load([query_request(query, NAME) for query in queries])
            filtered = {"filter": {"must": [{"key": "n", "range": {"gte": 100, "lt": 400}}]}}
            connection.must("PUT", f"/collections/{NAME}/index?wait=true", {"field_name": "n", "field_schema": "integer"})
            wait_green(connection, NAME, 600)
            rates["filtered searches/s"] = load([query_request(query, NAME, **filtered) for query in queries])
            connection.close()
        return rates
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def upper(ratios: list[float]) -> float:
    """The median of ratios drawn again and again, 95 of 100 of which lie below."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[int(0.95 * len(medians))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--peer", type=Path, required=True, help="the older server's binary")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="not part of the small run")
    args = parser.parse_args()
    from harness.server import binary

    args.data.mkdir(parents=True, exist_ok=True)
    servers = {"this": binary(), "older": args.peer}
    base, queries = vectors(args.points, 1), vectors(1000, 2)
    slowdowns: dict[str, list[float]] = {}
    for number in range(args.rounds + 1):
        order = ["older", "this"] if number % 2 else ["this", "older"]
        rates = {name: work(servers[name], args.data, base, queries, args.seconds) for name in order}
        if number == 0:
            continue
        for what, rate in rates["this"].items():
            slowdowns.setdefault(what, []).append(rates["older"][what] / rate)
        print("  .. " + ", ".join(f"{what} {rate:,.0f} ({slowdowns[what][-1]:.2f})" for what, rate in rates["this"].items()), file=sys.stderr, flush=True)
    report = Report(f"time of the work beside an older server's, {args.rounds} rounds", args)
    for what, ratios in slowdowns.items():
        median, most = statistics.median(ratios), upper(ratios)
        figure = f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), up to {most:.3f}"
        report.row(what, figure, "<= 1.03, up to 1.08", median <= 1.03 and most <= 1.08)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
