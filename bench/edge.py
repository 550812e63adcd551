"""Over REST against qdrant-edge-py in process: the same vectors, queries and recall, rates in one run.

    ramekin serve --memory B  <-- REST, light load generator, 1 and 8 connections
    qdrant-edge-py                in process, one query after the other, and in batches

The library answers without a wire, and has no memory budget; the ratio says what both cost together.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import qdrant_edge as edge

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import exact, light  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server  # noqa: E402

EFS = (32, 48, 64, 96, 128, 192, 256)


class Edge:
    """A shard with the vectors of a data set, and with payloads and indexes of their fields where they are given."""

    def __init__(self, folder: Path, data: dataset.Dataset, payload=lambda row: None, kinds: dict[str, str] | None = None):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        vectors = edge.EdgeVectorParams(size=data.dim, distance=edge.Distance.Cosine)
        self.shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=vectors))
        for field, kind in (kinds or {}).items():
            self.shard.update(edge.UpdateOperation.create_field_index(field, getattr(edge.PayloadSchemaType, kind.capitalize())))
        start = time.monotonic()
        for at in range(0, len(data.base), 1_000):
            points = [edge.Point(at + i, v.tolist(), payload(at + i)) for i, v in enumerate(data.base[at : at + 1_000])]
            self.shard.update(edge.UpdateOperation.upsert_points(points))
        self.uploaded_s = time.monotonic() - start
        self.shard.optimize()
        self.ready_s = time.monotonic() - start
        self.queries = [q.tolist() for q in data.query]

    def request(self, query: list[float], ef: int, limit: int = 10, filter=None):
        params = edge.SearchParams(hnsw_ef=ef)
        return edge.QueryRequest(
            query=edge.Query.Nearest(query), limit=limit, filter=filter, params=params, with_payload=False, with_vector=False
        )

    def search(self, ef: int, limit: int = 10, filter=None) -> tuple[list[list[int]], float]:
        requests = [self.request(q, ef, limit, filter) for q in self.queries]
        start = time.perf_counter()
        found = [[p.id for p in self.shard.query(r)] for r in requests]
        return found, len(requests) / (time.perf_counter() - start)


def first_reaching(wanted: float, recalls: dict[int, float]) -> int:
    return next((ef for ef, r in sorted(recalls.items()) if r >= wanted), max(recalls))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="1GiB", help="the server's budget; the default holds everything")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, help="(default 5, 1 with --small)")
    parser.add_argument("--seconds", type=float, help="of each measurement over REST (default 5, 1 with --small)")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.small else 5)
    seconds = args.seconds or (1 if args.small else 5)
    data = dataset.read(args)
    report = Report(f"REST against qdrant-edge-py: {len(data.base):,} x {data.dim} ({data.name}), recall@10 >= {args.recall}", args)
    folder = args.data / "edge-ours"
    shutil.rmtree(folder, ignore_errors=True)
    with Server(folder, args.memory, log=args.data / "edge.log") as server:
        client.create(server, data.dim)
        start = time.monotonic()
        client.upload_light(server, data.base)
        wait_green(Connection(server.port), client.NAME, 3_600)
        ready_s = time.monotonic() - start
        theirs = Edge(args.data / "edge-theirs", data)
        report.row("to ready", f"ramekin {ready_s:.0f} s, edge {theirs.ready_s:.0f} s (upload {theirs.uploaded_s:.0f})")
        ours_recall = {ef: client.search(server, data, params={"hnsw_ef": ef})[0] for ef in EFS}
        theirs_recall = {ef: exact.recall(theirs.search(ef)[0], data.truth) for ef in EFS}
        ours_ef, theirs_ef = first_reaching(args.recall, ours_recall), first_reaching(args.recall, theirs_recall)
        report.row("recall@10", f"ramekin {ours_recall[ours_ef]:.4f} at ef {ours_ef}, edge {theirs_recall[theirs_ef]:.4f} at ef {theirs_ef}")
        requests = [client.query_request(q, params={"hnsw_ef": ours_ef}) for q in data.query]
        rates: dict[str, list[float]] = {"REST 1": [], "REST 8": [], "edge": []}
        for _ in range(rounds):
            for connections in (1, 8):
                seen = light.run(args.data, server.port, requests, connections, seconds)
                rates[f"REST {connections}"].append(seen["statuses"].get("200", 0) / seen["elapsed_s"])
            rates["edge"].append(theirs.search(theirs_ef)[1])
    for name, values in rates.items():
        report.row(f"{name}{' connections' if 'REST' in name else ', one by one'}", f"{spread(values)} queries/s")
    for name in ("REST 1", "REST 8"):
        report.row(f"ratio {name} / edge", f"{spread([a / b for a, b in zip(rates[name], rates['edge'], strict=True)], 2)}x", "reported")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(args.data / "edge-theirs", ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
