"""Filters with and without indexes, beside qdrant-edge-py and beside qdrant-client's local mode: the same payloads and
filters, drawn by chance, must select the same points.

    payloads --> ramekin serve, over REST   in segments, in overlays, and in the newest part: one collection that gets
                                            indexes, and one that never has any
             --> qdrant-edge-py             one shard in process that never has an index, and one that gets the same;
                                            another collection beside local mode
    first without an index, then with indexes of all kinds on most fields, drawn anew a few times
    each filter: scroll and count with indexes and without, scroll there without; now and then a search of all by it

What an index of words was told (its tokenizer and the like) is the one thing that may make a difference: such filters are
counted apart, and conditions on such fields are compared with the peer's shard that has the same index. How many filters that
shard answers otherwise than the one without an index is counted, too.

Half of the points get other payloads afterwards, some are deleted. Not drawn, since the peer's Python cannot say it: a match
of a boolean (it is read as a number). Local mode takes what is no object for an object under nested; that is not drawn for it.
Of `is_empty` and `is_null` beside a key it asks all values, and the others any: these differences are counted, and named.
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


def fill(rnd: random.Random, count: int, sides: list, mixed: bool = True, odd: bool = False) -> dict:
    """The same points, changes and deletes on all sides; returns the payloads that are left, by id."""
    payloads = {}
    ids = [number if rnd.random() < 0.7 else str(uuid.UUID(int=number)) for number in range(1, count + 1)]
    for at in range(0, count, BATCH):
        vector = [rnd.uniform(-1, 1) for _ in range(DIM)]
        batch = [{"id": i, "vector": vector, "payload": filters.payload(rnd, mixed, odd)} for i in ids[at : at + BATCH]]
        payloads |= {point["id"]: point["payload"] for point in batch}
        for side in sides:
            side.upsert(batch)
    for _ in range(count // 40):
        overwrite(rnd, payloads, sides, filters.payload(rnd, mixed, odd))
    gone = set(rnd.sample(ids, count // 20))
    for side in sides:
        side.delete(sorted(gone, key=str))
    return {i: payloads[i] for i in payloads if i not in gone}


def overwrite(rnd: random.Random, payloads: dict, sides: list, payload: dict) -> None:
    """Twenty points get another payload."""
    some = rnd.sample(sorted(payloads, key=str), 20)
    payloads |= {i: payload for i in some}
    for side in sides:
        side.overwrite(some, payload)


@dataclass
class Sides:
    """The same points: here with indexes and without any, there too."""

    here: Here
    plain: Here
    there: There
    there_indexed: There

    def all(self) -> list:
        return [self.here, self.plain, self.there, self.there_indexed]


@dataclass
class Outcome:
    cases: int = 0
    # Filters that ask for words that an index was told otherwise.
    apart: int = 0
    # Filters that select other points than without an index here, and than there.
    unlike_plain: int = 0
    unlike_there: int = 0
    # Filters of which the peer with indexes selects other points than the peer without.
    peer_unlike_itself: int = 0
    selected: int = 0
    # Seconds of all filters.
    ours: float = 0.0
    theirs: float = 0.0

    def __iadd__(self, other: "Outcome") -> "Outcome":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def told_otherwise(asked: dict, indexes: dict) -> bool:
    """Whether a filter asks for words of an index that takes texts apart otherwise than is done without one."""
    own = {path for path, schema in indexes.items() if not filters.is_as_without(schema)}
    return any(one.get("key") in own and filters.asks_words(one) for one in filters.conditions(asked))


def compare(rnd: random.Random, sides: Sides, ids: list, cases: int, points: int, indexes: dict) -> Outcome:
    """Draws filters, asks all sides, and tells what differs."""
    outcome = Outcome(cases=cases)
    for number in range(cases):
        asked = filters.draw(rnd, ids, booleans=False, odd=True)
        start = time.perf_counter()
        ours = sides.here.select(asked, points)
        outcome.ours += time.perf_counter() - start
        start = time.perf_counter()
        theirs = sides.there.select(asked, points)
        outcome.theirs += time.perf_counter() - start
        outcome.selected += len(theirs)
        if indexes:
            outcome.peer_unlike_itself += sides.there_indexed.select(asked, points) != theirs
        if told_otherwise(asked, indexes):
            outcome.apart += 1
            continue
        plain = sides.plain.select(asked, points)
        counted = number % 4 or sides.here.count(asked) == len(ours)
        searched = number % 16 or sides.here.search(asked, points) == ours
        outcome.unlike_plain += not (ours == plain and counted and searched)
        outcome.unlike_there += ours != theirs
        for what, others in [("without an index", plain), ("there", theirs)]:
            if ours != others:
                print(f"differs: {json.dumps(asked)}\n  {json.dumps(indexes)}\n  only here {sorted(ours - others, key=str)[:5]}, only {what} {sorted(others - ours, key=str)[:5]}", file=sys.stderr)
    return outcome


def compare_words(rnd: random.Random, sides: Sides, payloads: dict, cases: int, points: int, indexes: dict) -> tuple[int, int]:
    """Conditions on fields whose index was told how to take texts apart, beside the peer's: how many, and how many differ. Of
    points with several texts under a field it takes the words together, and here each text counts by itself."""
    own = [path for path, schema in indexes.items() if not filters.is_as_without(schema) and path.isalpha()]
    asked, wrong = 0, 0
    for number in range(cases if own else 0):
        path = own[number % len(own)]
        match = filters.match(rnd, False, True)
        if not filters.asks_words({"match": match}) or "phrase" in match and not indexes[path].get("phrase_matching"):
            continue
        filter = {"must": [{"key": path, "match": match}]}
        several = {i for i, payload in payloads.items() if isinstance(payload.get(path), list)}
        ours, theirs = sides.here.select(filter, points) - several, sides.there_indexed.select(filter, points) - several
        asked += 1
        if ours != theirs:
            wrong += 1
            print(f"words differ: {json.dumps(filter)}\n  {json.dumps(indexes[path])}\n  only here {sorted(ours - theirs, key=str)[:5]}, only there {sorted(theirs - ours, key=str)[:5]}", file=sys.stderr)
    return asked, wrong


def is_at_odds(asked: dict) -> bool:
    """Whether local mode sees something in a filter otherwise than the others do."""
    return any("key" in one and ("is_empty" in one or "is_null" in one) for one in filters.conditions(asked))


def beside_local(rnd: random.Random, server: Server, cases: int, points: int, report: Report) -> None:
    here, local = Here(server, "local"), Local()
    ids = sorted(fill(rnd, points, [here, local], mixed=False), key=str)
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
    with Server(folder / "here", "32MiB", log=args.data / "filters.log") as server:
        sides = Sides(Here(server), Here(server, "plain"), There(folder / "there"), There(folder / "there-indexed"))
        payloads = fill(rnd, points, sides.all(), odd=True)
        ids = sorted(payloads, key=str)
        for name in (NAME, "plain"):
            wait_green(Connection(server.port), name, 60)
        segments = sides.here.rest.must("GET", f"/collections/{NAME}")["segments_count"]
        report.row("segments", str(segments), "> 1", segments > 1)
        rounds = args.rounds or (3 if args.small else 8)
        # Without an index first; then with indexes of all kinds, payloads changing in between.
        outcome = compare(rnd, sides, ids, cases // 3, points, {})
        figure = f"{outcome.cases - outcome.unlike_there:,} of {outcome.cases:,}; {outcome.selected / outcome.cases:,.0f} of {len(ids):,} points each; {outcome.ours / outcome.cases * 1000:.1f} ms over REST, {outcome.theirs / outcome.cases * 1000:.1f} in process there"
        report.row("without an index: the same points as there", figure, "all", not outcome.unlike_there and not outcome.unlike_plain)
        total, words, words_wrong = Outcome(), 0, 0
        for _ in range(rounds):
            indexes = filters.indexes(rnd)
            for path in indexes:
                for side in (sides.here, sides.there_indexed):
                    side.index(path, indexes[path])
            overwrite(rnd, payloads, sides.all(), filters.payload(rnd, odd=True))
            total += compare(rnd, sides, ids, -(-(cases - cases // 3) // rounds), points, indexes)
            some, wrong = compare_words(rnd, sides, payloads, cases // rounds // 4, points, indexes)
            words, words_wrong = words + some, words_wrong + wrong
            for path in indexes:
                for side in (sides.here, sides.there_indexed):
                    side.index(path, None)
        asked = total.cases - total.apart
        figure = f"{asked - total.unlike_plain:,} of {asked:,}; {total.selected / total.cases:,.0f} of {len(ids):,} points each; {total.ours / total.cases * 1000:.1f} ms over REST"
        report.row("with indexes: the same points as without one", figure, "all", not total.unlike_plain)
        report.row("with indexes: the same points as there without one", f"{asked - total.unlike_there:,} of {asked:,}", "all", not total.unlike_there)
        report.row("words of indexes that were told how to take texts apart, as there", f"{words - words_wrong:,} of {words:,}; {total.apart:,} filters of {total.cases:,} ask for some", "all, some", words > 0 and not words_wrong)
        report.row("there: filters that an index makes select other points", f"{total.peer_unlike_itself:,} of {total.cases:,}", "> 0", total.peer_unlike_itself > 0)
        beside_local(rnd, server, cases // 4, points // 10, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
