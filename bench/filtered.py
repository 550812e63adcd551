"""Filtered search over indexed fields, under a budget: six fields, selectivities from 50 to 0.1 per cent, and all six at once.

    upload with payloads, six indexes   -->   the charge stays inside the limit
    one more index while searching      -->   p99 of search before and meanwhile
    unfiltered  and  s < 500, 100, 10, 1 of 1,000   in turns, light load, 8 connections  -->  ratios, recall against exact
    the same, each query with bounds of its own, so that no answer of an index is remembered    -->  ratios
    the six conditions                  -->   what part passes, rate, recall
"""

import argparse
import json
import random
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.client import create, put  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import exact, light  # noqa: E402
from harness.rest import Connection, points_body, request_bytes, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

NAME = "bench"
FIELDS = {"s": "integer", "a": "integer", "b": "keyword", "c": "integer", "d": "bool", "e": "float", "f": "keyword"}
LATE = "s"  # is indexed while searches run
SELECTED = {500: 0.5, 100: 0.5, 10: 1.0, 1: 2.0}  # s below: the goal, as a ratio to unfiltered
CONNECTIONS, BATCH, ASKED = 8, 1_000, 400


def columns(rows: int) -> dict[str, np.ndarray]:
    rnd = np.random.default_rng(7)
    return {
        "s": rnd.integers(0, 1_000, rows),
        "a": rnd.integers(0, 1_000_000, rows),
        "b": rnd.integers(0, 100, rows),
        "c": rnd.integers(0, 10, rows),
        "d": rnd.integers(0, 2, rows),
        "e": rnd.random(rows).round(6),
        "f": rnd.integers(0, 50, rows),
    }


def payload(fields: dict[str, np.ndarray], row: int) -> dict:
    value = {name: column[row].item() for name, column in fields.items()}
    return {**value, "b": f"word-{value['b']:02}", "d": bool(value["d"]), "f": f"kind-{value['f']:02}"}


def six(fields: dict[str, np.ndarray]) -> tuple[dict, np.ndarray]:
    """The six conditions as a filter, and which rows pass."""
    words, kinds = list(range(0, 100, 5)), [3, 17, 42]
    made = [
        {"key": "a", "range": {"lt": 500_000}},
        {"key": "b", "match": {"any": [f"word-{w:02}" for w in words]}},
        {"key": "c", "match": {"any": [2, 7]}},
        {"key": "d", "match": {"value": True}},
        {"key": "e", "range": {"gte": 0.5}},
        {"key": "f", "match": {"except": [f"kind-{k:02}" for k in kinds]}},
    ]
    passing = (fields["a"] < 500_000) & np.isin(fields["b"], words) & np.isin(fields["c"], [2, 7]) & (fields["d"] == 1)
    return {"must": made}, passing & (fields["e"] >= 0.5) & ~np.isin(fields["f"], kinds)


def upload(server: Server, base: np.ndarray, fields: dict[str, np.ndarray]) -> None:
    connection = Connection(server.port, timeout=600)
    for at in range(0, len(base), BATCH):
        part = base[at : at + BATCH]
        body = points_body(at, part, [payload(fields, row) for row in range(at, at + len(part))])
        put(connection, request_bytes("PUT", f"/collections/{NAME}/points?wait=false", body))
    connection.close()


def others(queries: np.ndarray, below: int, limit: int) -> list[bytes]:
    """Each query with a filter of its own that lets as much through: a range of `s` with a bound that only it has."""
    rnd, made = random.Random(below), []
    for number, query in enumerate(queries):
        start = rnd.randint(0, 1_000 - below)
        filter = {"must": [{"key": "s", "range": {"gte": start - 0.5 + number * 1e-7, "lt": start + below}}]}
        made += requests(query[None], filter, limit)
    return made


def requests(queries: np.ndarray, filter: dict | None, limit: int) -> list[bytes]:
    more = f',"filter":{json.dumps(filter, separators=(",", ":"))}' if filter else ""
    path = f"/collections/{NAME}/points/query"
    bodies = (f'{{"query":[{",".join(f"{x:.9g}" for x in q.tolist())}],"limit":{limit},"with_payload":false{more}}}' for q in queries)
    return [request_bytes("POST", path, body.encode()) for body in bodies]


def recall(server: Server, data: dataset.Dataset, filter: dict, passing: np.ndarray, limit: int, asked: int) -> tuple[float, dict]:
    """Against the exact nearest of the rows that pass; and how the last query was done."""
    connection, rows = Connection(server.port), np.flatnonzero(passing)
    truth = exact.nearest(np.asarray(data.base)[rows], data.query[:asked], min(limit, len(rows)))
    found, explain = 0, {}
    for query, nearest in zip(data.query[:asked], truth, strict=True):
        body = {"query": query.tolist(), "filter": filter, "limit": limit, "with_payload": False, "profile": True}
        answer = connection.send(request_bytes("POST", f"/collections/{NAME}/points/query", json.dumps(body).encode())).json()
        explain = answer["result"]["profile"]
        found += len({point["id"] for point in answer["result"]["points"]} & set(rows[nearest].tolist()))
    return found / truth.size, explain


class Load:
    """Load in a thread, until it is stopped."""

    def __init__(self, folder: Path, port: int, bodies: list[bytes], seconds: float):
        self.figures: dict = {}
        self.thread = threading.Thread(target=lambda: self.figures.update(light.run(folder, port, bodies, CONNECTIONS, seconds)))
        self.thread.start()

    def end(self) -> dict:
        self.thread.join()
        return self.figures


def ingest(report: Report, server: Server, rest: Connection, data: dataset.Dataset, fields: dict[str, np.ndarray]) -> None:
    create(server, data.dim, NAME)
    for name, kind in FIELDS.items():
        if name != LATE:
            rest.must("PUT", f"/collections/{NAME}/index?wait=true", {"field_name": name, "field_schema": kind})
    start = time.monotonic()
    upload(server, data.base, fields)
    sent = time.monotonic() - start
    wait_green(Connection(server.port), NAME, 1200)
    report.row("upload, and until all is indexed", f"{sent:,.0f} s, {time.monotonic() - start:,.0f} s")
    info = rest.must("GET", f"/collections/{NAME}")
    points = {name: held["points"] for name, held in info["payload_schema"].items()}
    report.row("points in each index", f"{min(points.values()):,}", f"{len(data.base):,}", set(points.values()) == {len(data.base)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="(default 127MiB; 48MiB with --small)")
    parser.add_argument("--seconds", type=float, help="of each load (default 6; 1 with --small)")
    parser.add_argument("--rounds", type=int, help="(default 3; 1 with --small)")
    parser.add_argument("--reuse", action="store_true", help="keep the data, and use what was kept")
    args = parser.parse_args()
    memory = args.memory or ("48MiB" if args.small else "127MiB")
    seconds, rounds = args.seconds or (1 if args.small else 6), args.rounds or (1 if args.small else 3)
    data = dataset.read(args)
    report = Report(f"filtered search, {len(data.base):,} x {data.dim}, {memory}", args)
    fields = columns(len(data.base))
    folder = args.data / "filtered"
    if not args.reuse:
        shutil.rmtree(folder, ignore_errors=True)
    kept = (folder / "data").exists()
    with Server(folder / "data", memory, log=args.data / "filtered.log") as server:
        rest = Connection(server.port, timeout=600)
        if not kept:
            ingest(report, server, rest, data, fields)
        else:
            rest.must("DELETE", f"/collections/{NAME}/index/{LATE}?wait=true")
        time.sleep(0 if args.small else 3)

        plain = requests(data.query, None, 10)
        before = light.run(args.data, server.port, plain, CONNECTIONS, seconds)
        late = Load(args.data, server.port, plain, seconds * (1 if args.small else 3))
        start = time.monotonic()
        rest.must("PUT", f"/collections/{NAME}/index?wait=true&timeout=600", {"field_name": LATE, "field_schema": FIELDS[LATE]})
        took, meanwhile = time.monotonic() - start, late.end()
        figure = f"{before['p99_ms']:.1f} ms before, {meanwhile['p99_ms']:.1f} ms; built in {took:.1f} s"
        report.row("p99 of searches while an index is built", figure, "<= 2x", meanwhile["p99_ms"] <= 2 * before["p99_ms"], speed=True)
        wait_green(Connection(server.port), NAME, 600)

        filters = {below: ({"must": [{"key": "s", "range": {"lt": below}}]}, fields["s"] < below) for below in SELECTED}
        rates: dict = {below: [] for below in SELECTED}
        others_rates: dict = {below: [] for below in SELECTED}
        others_bodies = {below: others(data.query, below, 10) for below in SELECTED}
        unfiltered = []
        for _ in range(rounds):
            unfiltered.append(light.run(args.data, server.port, plain, CONNECTIONS, seconds)["per_second"])
            for below in SELECTED:
                bodies = requests(data.query, filters[below][0], 10)
                rates[below].append(light.run(args.data, server.port, bodies, CONNECTIONS, seconds)["per_second"])
                others_rates[below].append(light.run(args.data, server.port, others_bodies[below], CONNECTIONS, seconds)["per_second"])
        report.row("unfiltered, queries/s", spread(unfiltered))
        for below, goal in SELECTED.items():
            ratios = [own / plain for own, plain in zip(rates[below], unfiltered, strict=True)]
            asked = random.Random(1).sample(range(len(data.query)), min(ASKED, len(data.query)))
            part = dataset.Dataset(data.name, data.base, data.query[asked], data.truth)
            share, explain = recall(server, part, *filters[below], 10, len(asked))
            said = explain.get("explain", {})
            figure = f"{spread(ratios, 2)}x, {spread(rates[below])}/s, recall {share:.4f}; {explain['codes']:,} codes, {explain['reads']} reads, direct {said.get('direct')}"
            report.row(f"{below / 10:g} % pass", figure, f">= {goal}x, .95", share >= 0.95 and (args.small or sorted(ratios)[rounds // 2] >= goal))
            ratios = [own / plain for own, plain in zip(others_rates[below], unfiltered, strict=True)]
            report.row(f"{below / 10:g} % pass, another filter each time", f"{spread(ratios, 2)}x, {spread(others_rates[below])}/s", "reported")
        filter, passing = six(fields)
        share, explain = recall(server, data, filter, passing, 60, min(100, len(data.query)))
        rate = light.run(args.data, server.port, requests(data.query, filter, 60), CONNECTIONS, seconds)["per_second"]
        said = explain.get("explain", {})
        figure = f"{rate:,.0f}/s, recall {share:.4f}; {passing.mean():.2%} pass ({said.get('passing'):,}, at most {said.get('estimate'):,} expected)"
        report.row("six conditions, limit 60", figure, "recall .95", share >= 0.95)
        charged = rest.must("GET", "/memory")
        report.row("highest charge", mib(charged["peak_bytes"]), f"<= {memory}", charged["peak_bytes"] <= server.budget)
    if not args.reuse:
        shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
