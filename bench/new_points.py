"""A filter that nothing passes, over points that are still in memory: with an index of its field and without one.

    indexed    index ─► 15,000 points ─► the filter looks at columns in memory
    plain               15,000 points ─► the filter reads each payload from the log, in batches
    probes     small queries of another collection meanwhile

Each is asked while the points are new: `indexed_vectors_count` and segments tell that nothing was written out before the end.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bench.report import Report  # noqa: E402
from bench.stalls import DIM, Control, Probe, create, upload  # noqa: E402
from harness.rest import Connection  # noqa: E402
from harness.server import Server  # noqa: E402

LEAST_RATE = 5_000  # points a second without an index


def timed(connection: Connection, name: str, asked: dict | None, times: int) -> tuple[float, dict]:
    """Milliseconds of a query, the median, and the last one's profile."""
    body = {"query": [1.0] * DIM, "limit": 10, "profile": True, **({"filter": asked} if asked else {})}
    took, answer = [], {}
    for _ in range(times):
        start = time.monotonic()
        answer = connection.must("POST", f"/collections/{name}/points/query", body)
        took.append((time.monotonic() - start) * 1e3)
    if asked and answer["points"]:
        raise RuntimeError("a filter that nothing passes found points")
    return float(np.median(took)), answer["profile"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".bench"))
    parser.add_argument("--small", action="store_true", help="3,000 points; goals of speed are not checked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory", default="256MiB")
    args = parser.parse_args()
    count = 3_000 if args.small else 15_000
    report = Report(f"a filter over {count:,} new points, {args.memory}", args)
    args.data.mkdir(parents=True, exist_ok=True)
    folder = args.data / "new_points"
    absent = {"must": [{"key": "k", "match": {"value": -1}}, {"key": "t", "match": {"value": "absent"}}]}
    for kind in ("indexed", "plain"):
        shutil.rmtree(folder, ignore_errors=True)
        with Server(folder, args.memory, log=args.data / "new_points.log") as server, Control() as watch:
            connection = Connection(server.port, timeout=600)
            create(connection, "new")
            create(connection, "other")
            upload(server.port, "other", 1_000, lambda n: {"k": n}, 500)
            if kind == "indexed":
                for field, schema in (("k", "integer"), ("t", "keyword")):
                    body = {"field_name": field, "field_schema": schema}
                    connection.must("PUT", "/collections/new/index?wait=true", body)
            upload(server.port, "new", count, lambda n: {"k": n, "t": f"{n} " + "x" * 200}, 500)
            question = {"query": [1.0] * DIM, "limit": 10}
            probe = Probe(server.port, lambda c: c.ask("POST", "/collections/other/points/query", question))
            began = time.monotonic()
            bare, _ = timed(connection, "new", None, 20)
            middle = time.monotonic()
            filtered, profile = timed(connection, "new", absent, 20 if kind == "indexed" else 5)
            ended = time.monotonic()
            probe.stop.set()
            probe.thread.join()
            segments = connection.must("GET", "/collections/new")["segments_count"]
        report.row(f"{kind}: still in memory", f"{segments} segments", "0 or 1", segments <= 1)
        reads = f"{profile['reads']} reads"
        if kind == "indexed":
            figure = f"{filtered:.1f} ms, {reads}; unfiltered {bare:.1f} ms"
            report.row("indexed: the filter", figure, "<= 2x unfiltered + 5 ms", filtered <= 2 * bare + 5, speed=True)
            report.row("indexed: payloads read", reads, "0", profile["reads"] == 0)
        else:
            rate = count / (filtered / 1e3)
            figure = f"{filtered:.1f} ms, {rate:,.0f} points/s, {reads}; unfiltered {bare:.1f} ms"
            report.row("plain: the filter", figure, f">= {LEAST_RATE:,} points/s", rate >= LEAST_RATE, speed=True)
            report.row("plain: payloads are counted as reads", reads, "> 0", profile["reads"] > 0)
        before, _ = probe.between(began, middle, watch.kept)
        during, _ = probe.between(middle, ended, watch.kept)
        if len(before) and len(during):
            cut = lambda ms: f"{np.percentile(ms, 50):.1f} / {np.percentile(ms, 99):.1f}"  # noqa: E731
            good = np.percentile(during, 99) <= 3 * max(np.percentile(before, 99), 1.0)
            report.row(f"{kind}: queries of another collection, p50 / p99", f"{cut(during)} ms, before {cut(before)}", "<= 3x", good, speed=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
