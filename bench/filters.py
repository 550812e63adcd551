"""Filters beside qdrant-edge-py, and beside qdrant-client's local mode: the same payloads and filters, drawn by chance, must
select the same points.

    payloads --> ramekin serve, over REST   in segments, in overlays, and in the newest part
             --> qdrant-edge-py             one shard in process; another collection beside local mode
    first without an index, then with indexes of all kinds on most fields, drawn anew a few times
    each filter: scroll and count here, scroll there; now and then a search of all by the same filter

Half of the points get other payloads afterwards, some are deleted. Not drawn, since the peer's Python cannot say it or
is at odds with itself: a match of a boolean (it is read as a number), places at the poles; two bounds of one side, and over
indexes is_empty and is_null inside nested (what holds depends on how it plans the query). Local mode takes what is no
object for an object under nested; that is not drawn for it. Of `is_empty` and `is_null` beside a key it asks all values, and
the others any: these differences are counted, and named.
"""

import argparse
import json
import random
import shutil
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import qdrant_edge as edge
from qdrant_client import QdrantClient, models

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
    def __init__(self, server: Server, name: str = NAME):
        self.rest, self.name = Connection(server.port, timeout=600), name
        self.rest.must("PUT", f"/collections/{name}", {"vectors": {"size": DIM, "distance": "Dot"}})

    def path(self, rest: str) -> str:
        return f"/collections/{self.name}/points{rest}"

    def upsert(self, points: list[dict]) -> None:
        self.rest.must("PUT", self.path("?wait=true"), {"points": points})

    def overwrite(self, ids: list, payload: dict) -> None:
        self.rest.must("PUT", self.path("/payload?wait=true"), {"points": ids, "payload": payload})

    def delete(self, ids: list) -> None:
        self.rest.must("POST", self.path("/delete?wait=true"), {"points": ids})

    def select(self, asked: dict, most: int) -> set:
        page = self.rest.must("POST", self.path("/scroll"), {"filter": asked, "limit": most, "with_payload": False})
        return {point["id"] for point in page["points"]}

    def index(self, path: str, schema: dict | None) -> None:
        if schema is None:
            self.rest.must("DELETE", f"/collections/{self.name}/index/{quote(path, safe='')}?wait=true")
        else:
            self.rest.must("PUT", f"/collections/{self.name}/index?wait=true", {"field_name": path, "field_schema": schema})

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

    def index(self, path: str, schema: dict | None) -> None:
        make, drop = edge.UpdateOperation.create_field_index, edge.UpdateOperation.delete_field_index
        self.shard.update(make(path, filters.to_edge_index(schema)) if schema else drop(path))

    def delete(self, ids: list) -> None:
        self.shard.update(edge.UpdateOperation.delete_points(self.ids(ids)))

    def select(self, asked: dict, most: int) -> set:
        request = edge.ScrollRequest(limit=most, filter=filters.to_edge(asked), with_payload=False, with_vector=False)
        return {record.id if isinstance(record.id, int) else str(record.id) for record in self.shard.scroll(request)[0]}

    @staticmethod
    def ids(ids: list) -> list:
        return [i if isinstance(i, int) else uuid.UUID(i) for i in ids]


class Local:
    """qdrant-client's local mode."""

    def __init__(self):
        self.client = QdrantClient(":memory:")
        self.client.create_collection(NAME, vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT))

    def upsert(self, points: list[dict]) -> None:
        self.client.upsert(NAME, [models.PointStruct(id=p["id"], vector=[1.0], payload=p["payload"]) for p in points])

    def overwrite(self, ids: list, payload: dict) -> None:
        self.client.overwrite_payload(NAME, payload, points=ids)

    def delete(self, ids: list) -> None:
        self.client.delete(NAME, ids)

    def select(self, asked: dict, most: int) -> set:
        wanted = models.Filter.model_validate(asked)
        return {point.id for point in self.client.scroll(NAME, scroll_filter=wanted, limit=most, with_payload=False)[0]}


def fill(rnd: random.Random, count: int, sides: list, mixed: bool = True) -> list:
    """The same points, changes and deletes on both sides; returns the ids that are left."""
    ids = [number if rnd.random() < 0.7 else str(uuid.UUID(int=number)) for number in range(1, count + 1)]
    for at in range(0, count, BATCH):
        vector = [rnd.uniform(-1, 1) for _ in range(DIM)]
        batch = [{"id": i, "vector": vector, "payload": filters.payload(rnd, mixed)} for i in ids[at : at + BATCH]]
        for side in sides:
            side.upsert(batch)
    for _ in range(count // 40):
        some, payload = rnd.sample(ids, 20), filters.payload(rnd, mixed)
        for side in sides:
            side.overwrite(some, payload)
    gone = set(rnd.sample(ids, count // 20))
    for side in sides:
        side.delete(sorted(gone, key=str))
    return [i for i in ids if i not in gone]


@dataclass
class Outcome:
    wrong: int = 0
    selected: int = 0
    # Seconds of a filter.
    ours: float = 0.0
    theirs: float = 0.0


def compare(rnd: random.Random, here: Here, there: There, ids: list, cases: int, points: int, indexes: dict) -> Outcome:
    """Draws filters, asks both sides, and tells what differs."""
    outcome = Outcome()
    for number in range(cases):
        asked = filters.draw(rnd, ids, booleans=False, indexed=bool(indexes))
        start = time.perf_counter()
        ours = here.select(asked, points)
        middle = time.perf_counter()
        theirs = there.select(asked, points)
        outcome.theirs += (time.perf_counter() - middle) / cases
        outcome.ours += (middle - start) / cases
        outcome.selected += len(theirs)
        same = ours == theirs and (number % 4 or here.count(asked) == len(theirs)) and (number % 16 or here.search(asked, points) == theirs)
        if not same:
            outcome.wrong += 1
            print(f"differs: {json.dumps(asked)}\n  {json.dumps(indexes)}\n  only here {sorted(ours - theirs, key=str)[:5]}, only there {sorted(theirs - ours, key=str)[:5]}", file=sys.stderr)
    return outcome


def is_at_odds(asked: dict) -> bool:
    """Whether local mode sees something in a filter otherwise than the others do."""
    return any("key" in one and ("is_empty" in one or "is_null" in one) for one in filters.conditions(asked))


def beside_local(rnd: random.Random, server: Server, cases: int, points: int, report: Report) -> None:
    here, local = Here(server, "local"), Local()
    ids = fill(rnd, points, [here, local], mixed=False)
    wrong, at_odds = 0, 0
    for _ in range(cases):
        asked = filters.draw(rnd, ids, mixed=False)
        ours, theirs = here.select(asked, points), local.select(asked, points)
        if ours != theirs and is_at_odds(asked):
            at_odds += 1
        elif ours != theirs:
            wrong += 1
            print(f"differs from local mode: {json.dumps(asked)}\n  only here {sorted(ours - theirs, key=str)[:5]}, only there {sorted(theirs - ours, key=str)[:5]}", file=sys.stderr)
    report.row("local mode: filters that select the same points", f"{cases - wrong - at_odds:,} of {cases:,}", "all but the named", not wrong)
    report.row("local mode: is_empty, is_null beside a key, all values or any", f"{at_odds:,}, {at_odds / cases:.2%}", "<= 1 %", at_odds <= cases / 100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--cases", type=int, help="filters (default 20,000; 600 with --small)")
    parser.add_argument("--points", type=int, help="(default 4,000; 2,500 with --small)")
    parser.add_argument("--rounds", type=int, help="times that indexes are drawn, each for a part of the filters (default 8; 3 with --small)")
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
        rounds = args.rounds or (3 if args.small else 8)
        # Without an index first; then with indexes of all kinds, payloads changing in between.
        total, wrong = 0, 0
        for number in range(rounds + 1):
            indexes = filters.indexes(rnd) if number else {}
            for path in indexes:
                for side in (here, there):
                    side.index(path, indexes[path])
            if number:
                some, payload = rnd.sample(ids, 20), filters.payload(rnd)
                for side in (here, there):
                    side.overwrite(some, payload)
            count = cases // 3 if number == 0 else -(-(cases - cases // 3) // rounds)
            outcome = compare(rnd, here, there, ids, count, points, indexes)
            total, wrong = total + count, wrong + outcome.wrong
            what = "with indexes" if number else "without an index"
            figure = f"{count - outcome.wrong:,} of {count:,}; {outcome.selected / count:,.0f} of {len(ids):,} points each; {outcome.ours * 1000:.1f} ms over REST, {outcome.theirs * 1000:.1f} in process there"
            report.row(what, figure, "all", not outcome.wrong)
            for path in indexes:
                for side in (here, there):
                    side.index(path, None)
        report.row("filters that select the same points", f"{total - wrong:,} of {total:,}", "all", not wrong)
        beside_local(rnd, server, cases // 4, points // 10, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
