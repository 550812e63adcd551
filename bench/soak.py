"""Half an hour of everything at once under a small budget: what grows, and what becomes slower.

    warm-up | first half: all kinds of requests | pause: threads, descriptors | second half | pause | charge's slope, p99 of both halves

Points are written round and round in one range of ids, so that what is stored stays of one size; collections, aliases and indexes
come and go.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.cgroup import Sampler  # noqa: E402
from harness.rest import Connection, points_body, request_bytes  # noqa: E402
from harness.server import Server, mib  # noqa: E402

DIM, IDS, BATCH = 64, 40_000, 100
WORDS = ["red", "green", "blue", "quick", "brown", "fox", "lazy", "dog"]
NAME = "/collections/soaked"


class Client:
    """One connection that asks whatever it draws, and keeps how long each took."""

    def __init__(self, port: int, seed: int):
        self.port, self.rnd, self.rng = port, random.Random(seed), np.random.default_rng(seed)
        self.took: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.statuses: Counter = Counter()

    def vector(self) -> list[float]:
        return [round(x, 4) for x in self.rng.standard_normal(DIM).tolist()]

    def filter(self) -> dict:
        rnd = self.rnd
        one = rnd.choice(
            [
                {"key": "word", "match": {"any": rnd.sample(WORDS, 2)}},
                {"key": "count", "range": {"gte": rnd.randint(0, 900), "lt": 950}},
                {"key": "text", "match": {"text": rnd.choice(WORDS)}},
                {"has_id": rnd.sample(range(IDS), 50)},
            ]
        )
        return {rnd.choice(["must", "should"]): [one, {"key": "count", "range": {"lt": rnd.randint(100, 1000)}}]}

    def points(self) -> bytes:
        first = self.rnd.randrange(0, IDS - BATCH)
        payloads = [self.payload() for _ in range(BATCH)]
        return points_body(first, self.rng.standard_normal((BATCH, DIM)).astype(np.float32), payloads)

    def payload(self) -> dict:
        rnd = self.rnd
        return {"word": rnd.choice(WORDS), "count": rnd.randrange(1000), "text": " ".join(rnd.choices(WORDS, k=12))}

    def drawn(self) -> tuple[str, str, str, object]:
        """Kind, method, path and body of one request."""
        rnd, first = self.rnd, self.rnd.randrange(IDS)
        few = [first + n for n in range(20)]
        some = rnd.choices(
            ["query", "filtered", "exact", "batch", "scroll", "count", "facet", "retrieve", "upsert", "delete", "payload", "by filter", "vectors", "info", "catalogue", "refused"],
            [20, 15, 2, 2, 6, 6, 3, 8, 12, 2, 4, 0.3, 2, 4, 1, 3],
        )[0]
        match some:
            case "query":
                return some, "POST", f"{NAME}/points/query", {"query": self.vector(), "limit": 10}
            case "filtered":
                return some, "POST", f"{NAME}/points/query", {"query": self.vector(), "limit": 10, "filter": self.filter(), "with_payload": True}
            case "exact":
                return some, "POST", f"{NAME}/points/query", {"query": self.vector(), "limit": 10, "params": {"exact": True}}
            case "batch":
                return some, "POST", f"{NAME}/points/query/batch", {"searches": [{"query": self.vector(), "limit": 5} for _ in range(8)]}
            case "scroll":
                return some, "POST", f"{NAME}/points/scroll", {"limit": 100, "offset": first, "filter": self.filter(), "with_vector": True}
            case "count":
                return some, "POST", f"{NAME}/points/count", {"filter": self.filter()}
            case "facet":
                return some, "POST", f"{NAME}/facet", {"key": "word"}
            case "retrieve":
                return some, "POST", f"{NAME}/points", {"ids": few, "with_vector": True}
            case "upsert":
                return some, "PUT", f"{NAME}/points?wait={rnd.choice(['true', 'false'])}", self.points()
            case "delete":
                return some, "POST", f"{NAME}/points/delete", {"points": few}
            case "payload":
                return some, "POST", f"{NAME}/points/payload", {"points": few, "payload": self.payload()}
            case "by filter":
                return some, "POST", f"{NAME}/points/payload", {"filter": {"must": [{"key": "count", "match": {"value": rnd.randrange(1000)}}]}, "payload": {"extra": first}}
            case "vectors":
                return some, "PUT", f"{NAME}/points/vectors", {"points": [{"id": n, "vector": self.vector()} for n in few]}
            case "info":
                return some, "GET", rnd.choice([NAME, "/collections", "/memory", "/metrics", "/telemetry", "/aliases"]), None
            case "refused":
                return some, "POST", f"{NAME}/points/query", {"query": [0.5] * rnd.randrange(1, 2_000), "limit": 3}
        name = f"/collections/other-{rnd.randrange(8)}"
        change = rnd.choice(
            [
                ("PUT", name, {"vectors": {"size": 4, "distance": "Dot"}}),
                ("DELETE", name, None),
                ("PUT", f"{NAME}/index", {"field_name": "text", "field_schema": "text"}),
                ("DELETE", f"{NAME}/index/text", None),
                ("POST", "/collections/aliases", {"actions": [{"create_alias": {"collection_name": "soaked", "alias_name": f"a{first % 20}"}}]}),
            ]
        )
        return some, *change

    def run(self, stop, pause) -> "Client":
        connection = Connection(self.port, timeout=60)
        while not stop.is_set():
            if pause.is_set():
                connection.close()
                time.sleep(0.05)
                continue
            kind, method, path, body = self.drawn()
            raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            request = request_bytes(method, path, raw)
            start = time.monotonic()
            try:
                status = connection.send(request).status
            except OSError as error:
                status = type(error).__name__
            self.took[kind].append((start, time.monotonic() - start))
            self.statuses[f"{kind} {status}"] += 1
            time.sleep(0.08)  # below saturation: where a queue always stands, its length is all that a p99 says
        connection.close()
        return self


def clients(port: int, seeds: list[int], stop, pause, pipe) -> None:
    many = [Client(port, seed) for seed in seeds]
    threads = [threading.Thread(target=client.run, args=(stop, pause)) for client in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send([(dict(client.took), client.statuses) for client in many])


def at_rest(server: Server, pause) -> tuple[int, Counter, int]:
    """When nobody asks and all connections are closed: threads, descriptors by what they are, and those of data files, which come
    and go with segments."""
    pause.set()
    time.sleep(8)
    folder, open_ones = f"/proc/{server.pid}/fd", []
    for number in os.listdir(folder):
        try:
            open_ones.append(os.readlink(f"{folder}/{number}"))
        except OSError:
            pass  # closed while we look
    kinds = Counter(re.sub(r"\d+", "", name) for name in open_ones if str(server.data.resolve()) not in name)
    files = len(open_ones) - kinds.total()
    threads = len(os.listdir(f"/proc/{server.pid}/task"))
    pause.clear()
    return threads, kinds, files


def slope(samples: list[tuple[float, int]]) -> float:
    """Growth in 10 minutes as a share of the mean."""
    at, values = np.array([s[0] for s in samples]), np.array([s[1] for s in samples], float)
    return float(np.polyfit(at, values, 1)[0] * 600 / values.mean()) if len(samples) > 2 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--minutes", type=float, help="of both halves together (default 30, 0.5 with --small)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    half_s = 30 * (args.minutes or (0.5 if args.small else 30))
    print(f"seed {args.seed}", flush=True)
    report = Report(f"a soak of {2 * half_s / 60:.1f} minutes at {args.memory}, seed {args.seed}", args)
    folder = args.data / "soak"
    shutil.rmtree(folder, ignore_errors=True)
    context = multiprocessing.get_context("fork")
    with Server(folder, args.memory, log=args.data / "soak.log") as server:
        rest = Connection(server.port, timeout=60)
        rest.must("PUT", NAME, {"vectors": {"size": DIM, "distance": "Cosine"}})
        for field, kind in [("word", "keyword"), ("count", "integer")]:
            rest.must("PUT", f"{NAME}/index", {"field_name": field, "field_schema": kind})
        loader = Client(server.port, args.seed)
        for first in range(0, IDS, 500):
            vectors = loader.rng.standard_normal((500, DIM)).astype(np.float32)
            rest.send(request_bytes("PUT", f"{NAME}/points?wait=true", points_body(first, vectors, [loader.payload() for _ in range(500)])))
        stop, pause = context.Event(), context.Event()
        receive, send = context.Pipe(duplex=False)
        seeds = [args.seed * 1000 + n for n in range(args.connections)]
        load = context.Process(target=clients, args=(server.port, seeds, stop, pause, send), daemon=True)
        load.start()
        time.sleep(half_s / 5)  # caches and segments find their size
        charges = Sampler(server.charge)
        halves, rests = [], []
        for _ in range(2):
            began = time.monotonic()
            time.sleep(half_s)
            halves.append((began, time.monotonic()))
            rests.append(at_rest(server, pause))
        stop.set()
        charges.stop()
        seen = receive.recv()
        load.join()
        alive, highest, kills = server.alive(), server.peak(), server.cgroup.kills() if server.cgroup else 0
        state = rest.must("GET", NAME)
    statuses: Counter = sum((statuses for _, statuses in seen), Counter())
    odd = {what: count for what, count in statuses.items() if what.split()[-1] not in ("200", "404", "409") and not what.startswith("refused")}
    report.row("requests", f"{sum(statuses.values()):,}")
    report.row("answers that were not 200", ", ".join(f"{count} x {what}" for what, count in sorted(odd.items())) or "none", "none", not odd)
    grown = slope(charges.samples)
    report.row("charge: slope in 10 minutes", f"{grown:+.2%} of {mib(np.mean([value for _, value in charges.samples]))}", "< 1 %", grown < 0.01, speed=True)
    (threads, kinds, files), (threads_then, kinds_then, files_then) = rests
    # A thread makes its ring when it first reads several pages at once, which may be late, and keeps it.
    rings, rings_then = (counted.pop("anon_inode:[io_uring]", 0) for counted in (kinds, kinds_then))
    same = (threads, kinds) == (threads_then, kinds_then)
    if not same:
        print(f"descriptors that came: {dict(kinds_then - kinds)}, that went: {dict(kinds - kinds_then)}", flush=True)
    report.row("threads and descriptors at rest after each half", f"{threads} and {kinds.total()}, {threads_then} and {kinds_then.total()}", "equal", same, speed=True)
    report.row("beside them rings of threads", f"{rings}, {rings_then}", "<= one a thread", max(rings, rings_then) <= threads)
    report.row("beside them descriptors of data files", f"{files}, {files_then}")
    slowest, which = 0.0, ""
    for kind in sorted({kind for took, _ in seen for kind in took}):
        both = [sorted(took for all_took, _ in seen for start, took in all_took.get(kind, []) if begin <= start < end) for begin, end in halves]
        if min(len(half) for half in both) < 100:
            continue
        first, second = (half[len(half) * 99 // 100] * 1e3 for half in both)
        report.row(f"p99 of {kind}, first half, second half", f"{first:.1f} ms, {second:.1f} ms")
        if second / first > slowest:
            slowest, which = second / first, kind
    report.row("p99: second half over first, at the most", f"{slowest:.2f} ({which})", "<= 1.3", slowest <= 1.3, speed=True)
    report.row("highest charge", mib(highest), f"<= {args.memory}", highest <= server.budget)
    report.row("killed; status at the end", f"{kills} times; {state['status']}", "never; not red", alive and kills == 0 and state["status"] != "red")
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
