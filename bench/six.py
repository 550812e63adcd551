"""Six conditions at once beside qdrant-edge-py: the same vectors, payloads, indexes and queries, rates in one run.

    ramekin serve --memory B  <-- REST, light load generator, 1 and 8 connections
    qdrant-edge-py                in process, one query after the other, no limit

range on an integer and on a float (half pass each), match any of 20 of 100 and except 3 of 50 keywords, any of 2 of 10 integers,
one of two values: about one point in 200 passes all. The last is a boolean here and an integer there, since the peer's Python
reads True as 1. Limit 60. Both must reach the recall; the peer searches with more and more ef until it does.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, filtered  # noqa: E402
from bench.edge import EFS, Edge, first_reaching  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import exact, filters, light  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

LIMIT, RECALL = 60, 0.95
KINDS = {name: kind for name, kind in filtered.FIELDS.items() if name != filtered.LATE}


def peer(args, data: dataset.Dataset, fields: dict[str, np.ndarray]) -> Edge:
    def payload(row: int) -> dict:
        return {**filtered.payload(fields, row), "d": int(fields["d"][row])}

    return Edge(args.data / "six-theirs", data, payload, {**KINDS, "d": "integer"})


def theirs_asks(filter: dict) -> dict:
    is_d = lambda one: one["key"] == "d"  # noqa: E731
    return {"must": [{"key": "d", "match": {"value": 1}} if is_d(one) else one for one in filter["must"]]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="1GiB", help="the server's budget; the default holds everything")
    parser.add_argument("--rounds", type=int, help="(default 3; 1 with --small)")
    parser.add_argument("--seconds", type=float, help="of each load (default 6; 1 with --small)")
    parser.add_argument("--asked", type=int, default=200, help="queries of the peer, and of the recall")
    args = parser.parse_args()
    rounds, seconds = args.rounds or (1 if args.small else 3), args.seconds or (1 if args.small else 6)
    data = dataset.read(args)
    fields = filtered.columns(len(data.base))
    filter, passing = filtered.six(fields)
    part = dataset.Dataset(data.name, data.base, data.query[: args.asked], data.truth)
    report = Report(f"six conditions, {len(data.base):,} x {data.dim}, {args.memory}; {passing.mean():.2%} pass", args)
    folder = args.data / "six-ours"
    shutil.rmtree(folder, ignore_errors=True)
    with Server(folder, args.memory, log=args.data / "six.log") as server:
        rest = Connection(server.port, timeout=600)
        client.create(server, data.dim, filtered.NAME)
        for name, kind in KINDS.items():
            rest.must("PUT", f"/collections/{filtered.NAME}/index?wait=true", {"field_name": name, "field_schema": kind})
        start = time.monotonic()
        filtered.upload(server, data.base, fields)
        wait_green(Connection(server.port), filtered.NAME, 1200)
        ready_s = time.monotonic() - start
        shard = peer(args, part, fields)
        report.row("to ready", f"ramekin {ready_s:.0f} s, edge {shard.ready_s:.0f} s")
        rows = np.flatnonzero(passing)
        truth = rows[exact.nearest(np.asarray(data.base)[rows], part.query, min(LIMIT, len(rows)))]
        share, explain = filtered.recall(server, part, filter, passing, LIMIT, args.asked)
        report.row("ramekin: recall", f"{share:.4f}; {explain['codes']:,} codes, {explain['reads']} reads", f">= {RECALL}", share >= RECALL)
        asked = filters.to_edge(theirs_asks(filter))
        theirs = {ef: exact.recall(shard.search(ef, LIMIT, asked)[0], truth) for ef in EFS}
        ef = first_reaching(RECALL, theirs)
        report.row("edge: recall", f"{theirs[ef]:.4f} at ef {ef}", f">= {RECALL}", theirs[ef] >= RECALL)
        bodies = filtered.requests(data.query, filter, LIMIT)
        rates: dict[str, list[float]] = {"REST 1": [], "REST 8": [], "edge": []}
        for _ in range(rounds):
            for connections in (1, 8):
                rates[f"REST {connections}"].append(light.run(args.data, server.port, bodies, connections, seconds)["per_second"])
            rates["edge"].append(shard.search(ef, LIMIT, asked)[1])
        charge = server.peak()
    for name, values in rates.items():
        report.row(f"{name}: queries/s", spread(values))
    for name, goal in (("REST 1", None), ("REST 8", 2)):
        ratios = [ours / other for ours, other in zip(rates[name], rates["edge"], strict=True)]
        wanted = [f">= {goal}x", args.small or sorted(ratios)[rounds // 2] >= goal] if goal else ["reported"]
        report.row(f"{name} / edge", f"{spread(ratios, 2)}x", *wanted)
    report.row("highest charge", mib(charge), f"<= {args.memory}")
    del shard
    for name in ("six-ours", "six-theirs"):
        shutil.rmtree(args.data / name, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
