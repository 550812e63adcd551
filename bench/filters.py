"""Filters beside qdrant-edge-py: the same payloads and filters, drawn by chance, must select the same points.

    payloads --> ramekin serve, over REST   in segments, in overlays, and in the newest part
             --> qdrant-edge-py             one shard in process
    each filter: scroll and count here, scroll there; now and then a search of all by the same filter

Half of the points get other payloads afterwards, some are deleted. Not drawn, since the peer's Python cannot say it or
is at odds with itself: a match of a boolean (it is read as a number), places at the poles.
"""

import argparse
import random
import shutil
import sys
import time
import uuid
from pathlib import Path

import qdrant_edge as edge

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness import filters  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server  # noqa: E402

NAME = "filters"
DIM = 256  # so that a few thousand points are sealed under a small budget
BATCH = 250


class Here:
    def __init__(self, server: Server):
        self.rest = Connection(server.port, timeout=600)
        self.rest.must("PUT", f"/collections/{NAME}", {"vectors": {"size": DIM, "distance": "Dot"}})

    def path(self, rest: str) -> str:
        return f"/collections/{NAME}/points{rest}"

    def upsert(self, points: list[dict]) -> None:
        self.rest.must("PUT", self.path("?wait=true"), {"points": points})

    def overwrite(self, ids: list, payload: dict) -> None:
        self.rest.must("PUT", self.path("/payload?wait=true"), {"points": ids, "payload": payload})

    def delete(self, ids: list) -> None:
        self.rest.must("POST", self.path("/delete?wait=true"), {"points": ids})

    def select(self, asked: dict, most: int) -> set:
        page = self.rest.must("POST", self.path("/scroll"), {"filter": asked, "limit": most, "with_payload": False})
        return {point["id"] for point in page["points"]}

    def count(self, asked: dict) -> int:
        return self.rest.must("POST", self.path("/count"), {"filter": asked})["count"]

    def search(self, asked: dict, most: int) -> set:
        body = {"query": [1.0] * DIM, "filter": asked, "limit": most, "with_payload": False}
        return {point["id"] for point in self.rest.must("POST", self.path("/query"), body)["points"]}


class There:
    def __init__(self, folder: Path):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        vectors = edge.EdgeVectorParams(size=1, distance=edge.Distance.Dot)
        self.shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=vectors))

    def upsert(self, points: list[dict]) -> None:
        made = [edge.Point(p["id"] if isinstance(p["id"], int) else uuid.UUID(p["id"]), [1.0], p["payload"]) for p in points]
        self.shard.update(edge.UpdateOperation.upsert_points(made))

    def overwrite(self, ids: list, payload: dict) -> None:
        self.shard.update(edge.UpdateOperation.overwrite_payload(self.ids(ids), payload))

    def delete(self, ids: list) -> None:
        self.shard.update(edge.UpdateOperation.delete_points(self.ids(ids)))

    def select(self, asked: dict, most: int) -> set:
        request = edge.ScrollRequest(limit=most, filter=filters.to_edge(asked), with_payload=False, with_vector=False)
        return {record.id if isinstance(record.id, int) else str(record.id) for record in self.shard.scroll(request)[0]}

    @staticmethod
    def ids(ids: list) -> list:
        return [i if isinstance(i, int) else uuid.UUID(i) for i in ids]


def fill(rnd: random.Random, count: int, sides: list) -> list:
    """The same points, changes and deletes on both sides; returns the ids that are left."""
    ids = [number if rnd.random() < 0.7 else str(uuid.UUID(int=number)) for number in range(1, count + 1)]
    for at in range(0, count, BATCH):
        vector = [rnd.uniform(-1, 1) for _ in range(DIM)]
        batch = [{"id": i, "vector": vector, "payload": filters.payload(rnd)} for i in ids[at : at + BATCH]]
        for side in sides:
            side.upsert(batch)
    for _ in range(count // 40):
        some, payload = rnd.sample(ids, 20), filters.payload(rnd)
        for side in sides:
            side.overwrite(some, payload)
    gone = set(rnd.sample(ids, count // 20))
    for side in sides:
        side.delete(sorted(gone, key=str))
    return [i for i in ids if i not in gone]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--cases", type=int, help="filters (default 20,000; 600 with --small)")
    parser.add_argument("--points", type=int, help="(default 4,000; 2,500 with --small)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cases = args.cases or (600 if args.small else 20_000)
    points = args.points or (2_500 if args.small else 4_000)
    report = Report(f"filters, {cases:,} over {points:,} payloads", args)
    rnd = random.Random(args.seed)
    folder = args.data / "filters"
    shutil.rmtree(folder, ignore_errors=True)
    with Server(folder / "here", "24MiB", log=args.data / "filters.log") as server:
        here, there = Here(server), There(folder / "there")
        ids = fill(rnd, points, [here, there])
        wait_green(Connection(server.port), NAME, 60)
        segments = here.rest.must("GET", f"/collections/{NAME}")["segments_count"]
        report.row("segments", str(segments), "> 1", segments > 1)
        wrong, selected, took = [], 0, [0.0, 0.0]
        for number in range(cases):
            asked = filters.draw(rnd, ids, booleans=False)
            start = time.perf_counter()
            ours = here.select(asked, points)
            middle = time.perf_counter()
            theirs = there.select(asked, points)
            took = [took[0] + middle - start, took[1] + time.perf_counter() - middle]
            selected += len(theirs)
            same = ours == theirs and (number % 4 or here.count(asked) == len(theirs)) and (number % 16 or here.search(asked, points) == theirs)
            if not same:
                wrong.append(asked)
                print(f"differs: {asked}\n  only here {sorted(ours - theirs, key=str)[:5]}, only there {sorted(theirs - ours, key=str)[:5]}", file=sys.stderr)
        report.row("filters that select the same points", f"{cases - len(wrong):,} of {cases:,}", "all", not wrong)
        report.row("points selected, on average", f"{selected / cases:,.0f} of {len(ids):,}")
        report.row("milliseconds a filter, without an index", f"{took[0] / cases * 1000:.1f} over REST, {took[1] / cases * 1000:.1f} in process there")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
