"""What takes long in one collection, and how long others wait for it meanwhile.

    probes: a one-point write to another collection, and a query of each collection, one after the other, all the time
            ──────────── quiet ───────────┬──── flush │ change by filter │ delete by filter │ index is built ────
    control: a process that only sleeps 1 ms; where it slips by more than 10 ms the machine was not ours, and what was
             asked in that time is left out and counted

Of each kind of work: p50, p99 and the longest of the probes, before it and while it goes on.
"""

import argparse
import multiprocessing
import shutil
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bench import dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server  # noqa: E402

DIM = 64
SLIP_S = 0.010
LEFT_OUT_MOST = 0.20
STALL_MS = 50
TIMES = 3


def control(stop, slips, began) -> None:
    """Notes each sleep of 1 ms that took longer than it may: from when to when."""
    began.set()
    last = time.monotonic()
    while not stop.is_set():
        time.sleep(0.001)
        now = time.monotonic()
        if now - last > 0.001 + SLIP_S:
            slips.append((last, now))
        last = now


class Control:
    def __enter__(self):
        context = multiprocessing.get_context("spawn")
        self.manager = context.Manager()
        self.slips, self.stop, began = self.manager.list(), context.Event(), context.Event()
        self.process = context.Process(target=control, args=(self.stop, self.slips, began), daemon=True)
        self.process.start()
        began.wait()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.process.join()
        self.kept = list(self.slips)
        self.manager.shutdown()


class Probe:
    """Asks one thing after the other, and keeps when each was asked and how long it took."""

    def __init__(self, port: int, ask, pause: float = 0.002):
        self.taken: list[tuple[float, float]] = []
        self.failed: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(port, ask, pause), daemon=True)
        self.thread.start()

    def _run(self, port, ask, pause) -> None:
        connection = Connection(port, timeout=120)
        while not self.stop.is_set():
            start = time.monotonic()
            answer = ask(connection)
            self.taken.append((start, time.monotonic() - start))
            if answer.status != 200:
                self.failed.append(f"{answer.status} {answer.error[:80]}")
            time.sleep(pause)

    def between(self, start: float, end: float, slips: list) -> tuple[np.ndarray, int]:
        """Milliseconds of what was asked in between, and how many are left out."""
        kept, left_out = [], 0
        for at, took in self.taken:
            if at < start or at > end:
                continue
            if any(first < at + took and at < last for first, last in slips):
                left_out += 1
            else:
                kept.append(took * 1e3)
        return np.array(kept), left_out


def points(rnd, first: int, count: int, payload) -> dict:
    vectors = rnd.standard_normal((count, DIM)).astype(np.float32).round(4).tolist()
    return {"points": [{"id": first + n, "vector": v, "payload": payload(first + n)} for n, v in enumerate(vectors)]}


def upload(port: int, name: str, count: int, payload, batch: int) -> None:
    connection, rnd = Connection(port, timeout=600), np.random.default_rng(1)
    for first in range(0, count, batch):
        body = points(rnd, first, min(batch, count - first), payload)
        while (answer := connection.ask("PUT", f"/collections/{name}/points?wait=true", body)).status == 429:
            time.sleep(0.1)
        if answer.status != 200:
            raise RuntimeError(f"upload: {answer.status} {answer.error}")


def create(connection: Connection, name: str) -> None:
    connection.must("PUT", f"/collections/{name}?timeout=60", {"vectors": {"size": DIM, "distance": "Cosine"}})


def flush(connection, port, args) -> None:
    """10,000 points of 9 KB: the collection is quiet then, and is written out."""
    upload(port, "long", args.flushed, lambda n: {"t": f"{n}-" + "x" * 9_000}, 50)
    wait_green(connection, "long", 600)


def change(connection, port, args) -> None:
    body = {"payload": {"changed": True}, "filter": {"must": [{"key": "k", "range": {"gte": 0}}]}}
    connection.must("POST", "/collections/long/points/payload?wait=true", body)


def delete_vectors(connection, port, args) -> None:
    body = {"vector": [""], "filter": {"must": [{"key": "k", "range": {"gte": 0}}]}}
    connection.must("POST", "/collections/long/points/vectors/delete?wait=true", body)


def build_index(connection, port, args) -> None:
    body = {"field_name": "k", "field_schema": "integer"}
    connection.must("PUT", "/collections/long/index?wait=true", body)
    wait_green(connection, "long", 600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".bench"))
    parser.add_argument("--small", action="store_true", help="a tenth of the points; goals of time are not checked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--quiet", type=float, help="seconds before each piece of work (default 5, 1 with --small)")
    parser.add_argument("--only", action="append", help="flush, change, delete or index; may be given several times")
    args = parser.parse_args()
    args.flushed, args.changed = (1_000, 10_000) if args.small else (10_000, 100_000)
    quiet = args.quiet or (1 if args.small else 5)
    report = Report(f"stalls: {args.flushed:,} points flushed, {args.changed:,} changed, {args.memory}", args)
    args.data.mkdir(parents=True, exist_ok=True)
    folder = args.data / "stalls"
    works = [("flush", flush), ("change", change), ("delete", delete_vectors), ("index", build_index)]
    rnd = np.random.default_rng(2)
    question = {"query": rnd.standard_normal(DIM).round(4).tolist(), "limit": 10}
    for kind, work in [each for each in works if not args.only or each[0] in args.only]:
        shutil.rmtree(folder, ignore_errors=True)
        with Server(folder, args.memory, log=args.data / "stalls.log") as server, Control() as watch:
            connection = Connection(server.port, timeout=600)
            create(connection, "long")
            create(connection, "other")
            upload(server.port, "other", 1_000, lambda n: {"k": n}, 500)
            if kind != "flush":
                upload(server.port, "long", args.changed, lambda n: {"k": n, "t": "x" * 100}, 500)
                wait_green(connection, "long", 600)
            number = iter(range(10_000_000))
            body = lambda: points(rnd, 5_000 + next(number) % 500, 1, lambda n: {"k": n})  # noqa: E731
            probes = {
                "writes to another collection": Probe(
                    server.port, lambda c: c.ask("PUT", "/collections/other/points?wait=true", body())
                ),
                "queries of another collection": Probe(
                    server.port, lambda c: c.ask("POST", "/collections/other/points/query", question)
                ),
                "queries of the same": Probe(server.port, lambda c: c.ask("POST", "/collections/long/points/query", question)),
            }
            time.sleep(0.5)
            start = time.monotonic()
            time.sleep(quiet)
            begun = time.monotonic()
            work(connection, server.port, args)
            ended = time.monotonic()
            for probe in probes.values():
                probe.stop.set()
                probe.thread.join()
        for name, probe in probes.items():
            before, _ = probe.between(start, begun, watch.kept)
            during, left_out = probe.between(begun, ended, watch.kept)
            tell(report, args, f"{kind} ({ended - begun:.1f} s): {name}", before, during, left_out, probe.failed)
    return report.end()


def tell(report, args, what: str, before, during, left_out: int, failed: list) -> None:
    if failed:
        report.row(f"{what}: failed", f"{len(failed)}: {failed[0]}", "none", False)
    if not len(before) or not len(during):
        report.row(what, f"{len(before)} before, {len(during)} during, {left_out} left out", "some", None if args.small else False)
        return
    cut = lambda ms: (np.percentile(ms, 50), np.percentile(ms, 99), ms.max())  # noqa: E731
    (p50, p99, most), (d50, d99, dmost) = cut(before), cut(during)
    figure = f"{d50:.1f} / {d99:.1f} / {dmost:.1f} ms, before {p50:.1f} / {p99:.1f} / {most:.1f}, {left_out} of {left_out + len(during)} left out"
    ours = left_out / (left_out + len(during)) < LEFT_OUT_MOST
    good = d99 <= TIMES * max(p99, 1.0) and dmost <= STALL_MS
    goal = f"p99 <= {TIMES}x, longest <= {STALL_MS} ms, < {LEFT_OUT_MOST:.0%} left out"
    report.row(f"{what}: p50 / p99 / longest", figure, goal, None if args.small else good and ours)


if __name__ == "__main__":
    sys.exit(main())
