"""Clients that send the dearest filter there is and hang up: what others feel of it, and whether SIGTERM ends it.

    probes: a small query, and a one-point write to another collection, one after the other, all the time
            ── quiet ──┬──── 64 clients: connect, send, hang up after a moment ────┬─ 1 s ─┬── quiet again ──
    SIGTERM: under the same load; while an index is built; while points come in; while the folder is opened

The filters pass nothing, and no index helps them: each looks at every payload. A process that only sleeps tells when the
machine was not ours, as in `stalls.py`.
"""

import argparse
import json
import multiprocessing
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bench.report import Report  # noqa: E402
from bench.stalls import DIM, LEFT_OUT_MOST, Control, Probe, create, points, upload  # noqa: E402
from harness.attack import head  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, StartError  # noqa: E402

CLIENTS, PROCESSES = 64, 4
TIMES = 2
DRAIN_S = 4


def dearest(rnd: random.Random) -> tuple[str, dict]:
    """A request whose filter looks at every payload, with many tests for each, and passes none."""
    tests = [{"key": "t", "match": {"text": f"absent{n} {'y' * 200}"}} for n in range(60)]
    tests += [{"key": "tags[].name", "match": {"any": [f"none{n}-{k}" for k in range(100)]}} for n in range(20)]
    tests += [{"nested": {"key": "tags", "filter": {"must": [{"key": "name", "match": {"value": "none"}}]}}}] * 10
    asked = {"must": [{"should": tests}]}
    match rnd.randrange(4):
        case 0:
            return "scroll", {"filter": asked, "limit": 100}
        case 1:
            return "count", {"filter": asked, "exact": True}
        case 2:
            return "query", {"query": [1.0] * DIM, "filter": asked, "limit": 100, "params": {"exact": True}}
    return "query/batch", {"searches": [{"query": [1.0] * DIM, "filter": asked, "limit": 10}] * 16}


def abandon(port: int, clients: int, stop, sent) -> None:
    """Threads that send and hang up; what they sent is added up."""

    def run(seed: int) -> None:
        rnd = random.Random(seed)
        while not stop.is_set():
            path, body = dearest(rnd)
            text = json.dumps(body).encode()
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                    # Half of them vanish with a reset, half with a proper end.
                    if rnd.random() < 0.5:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.sendall(head("POST", f"/collections/long/points/{path}?timeout=600", "", len(text)) + text)
                    with sent.get_lock():
                        sent.value += 1
                    stop.wait(rnd.uniform(0.01, 0.3))
            except OSError:
                stop.wait(0.01)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Crowd:
    """64 such clients, in processes of their own."""

    def __init__(self, port: int):
        context = multiprocessing.get_context("spawn")
        self.stop, self.sent = context.Event(), context.Value("q", 0)
        each = (port, CLIENTS // PROCESSES, self.stop, self.sent)
        self.processes = [context.Process(target=abandon, args=each, daemon=True) for _ in range(PROCESSES)]
        for process in self.processes:
            process.start()
        while self.sent.value < CLIENTS and all(process.is_alive() for process in self.processes):
            time.sleep(0.05)

    def end(self) -> int:
        self.stop.set()
        for process in self.processes:
            process.join()
        return self.sent.value


def others(server: Server, seconds: float, quiet: float, report: Report) -> None:
    """What the probes feel before the crowd, and 1 s after its end."""
    rnd = np.random.default_rng(2)
    question = {"query": rnd.standard_normal(DIM).round(4).tolist(), "limit": 10}
    number = iter(range(10_000_000))
    body = lambda: points(rnd, 5_000 + next(number) % 500, 1, lambda n: {"k": n})  # noqa: E731
    with Control() as watch:
        probes = {
            "small queries": Probe(server.port, lambda c: c.ask("POST", "/collections/other/points/query", question)),
            "one-point writes": Probe(server.port, lambda c: c.ask("PUT", "/collections/other/points?wait=true", body())),
        }
        time.sleep(0.5)
        start = time.monotonic()
        time.sleep(quiet)
        begun = time.monotonic()
        crowd = Crowd(server.port)
        time.sleep(seconds)
        sent = crowd.end()
        ended = time.monotonic()
        time.sleep(1 + quiet)
        last = time.monotonic()
        for probe in probes.values():
            probe.stop.set()
            probe.thread.join()
    report.row("requests sent and given up", f"{sent:,} in {ended - begun:.0f} s", f">= {CLIENTS}", sent >= CLIENTS)
    for name, probe in probes.items():
        cut = lambda ms: (np.percentile(ms, 50), np.percentile(ms, 99))  # noqa: E731
        before, _ = probe.between(start, begun, watch.kept)
        during, _ = probe.between(begun, ended, watch.kept)
        after, left_out = probe.between(ended + 1, last, watch.kept)
        if not (len(before) and len(during) and len(after)):
            report.row(name, f"{len(before)}, {len(during)}, {len(after)} asked", "some of each", False)
            continue
        (b50, b99), (d50, d99), (a50, a99) = cut(before), cut(during), cut(after)
        figure = f"{a50:.1f} / {a99:.1f} ms, before {b50:.1f} / {b99:.1f}, meanwhile {d50:.1f} / {d99:.1f}; {left_out} of {left_out + len(after)} left out"
        good = a50 <= TIMES * b50 and a99 <= TIMES * max(b99, 1.0) and left_out < LEFT_OUT_MOST * (left_out + len(after))
        report.row(f"{name} 1 s after: p50 / p99", figure, f"<= {TIMES}x before", good, speed=True)
        report.row(f"{name} that failed", f"{len(probe.failed)}{': ' + probe.failed[0] if probe.failed else ''}", "0", not probe.failed)


def told_to_stop(server: Server, what: str, report: Report) -> None:
    """SIGTERM, and how long it takes."""
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(10 * DRAIN_S)
    except subprocess.TimeoutExpired:
        return report.row(f"SIGTERM {what}", f"not ended after {10 * DRAIN_S} s", f"<= {DRAIN_S} s", False)
    took = time.monotonic() - start
    report.row(f"SIGTERM {what}", f"{took:.2f} s, exit code {code}", f"<= {DRAIN_S} s, 0", took <= DRAIN_S and code == 0)


def stops(server: Server, args, report: Report) -> None:
    """SIGTERM at bad moments; the server is started again after each."""
    crowd = Crowd(server.port)
    time.sleep(1)
    told_to_stop(server, "under 64 such clients", report)
    crowd.end()

    server.start(600)
    Connection(server.port).ask("PUT", "/collections/long/index?wait=false", {"field_name": "t", "field_schema": "text"})
    told_to_stop(server, "while an index is built", report)

    server.start(600)
    coming = threading.Thread(target=bring, args=(server.port, args.points), daemon=True)
    coming.start()
    time.sleep(1)
    told_to_stop(server, "while points come in", report)
    coming.join()

    for wait_s in (0.05, 0.2, 0.5):
        opening = threading.Thread(target=open_quietly, args=(server,), daemon=True)
        before = server.process
        opening.start()
        while server.process is before:
            time.sleep(0.001)
        time.sleep(wait_s)
        told_to_stop(server, f"{wait_s} s after a start", report)
        opening.join()


def bring(port: int, count: int) -> None:
    try:
        upload(port, "other", count, lambda n: {"k": n, "t": "x" * 500}, 200)
    except (OSError, RuntimeError):
        pass  # it was told to stop


def open_quietly(server: Server) -> None:
    try:
        server.start(60)
    except StartError:
        pass  # it was told to stop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".bench"))
    parser.add_argument("--small", action="store_true", help="a tenth of the points, a few seconds; goals of speed are not checked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory", default="128MiB")
    parser.add_argument("--seconds", type=float, help="of the crowd (default 60, 5 with --small)")
    args = parser.parse_args()
    args.points = 10_000 if args.small else 100_000
    seconds, quiet = (args.seconds or 5, 1) if args.small else (args.seconds or 60, 10)
    report = Report(f"abandoned: {CLIENTS} clients over {args.points:,} points, {args.memory}", args)
    args.data.mkdir(parents=True, exist_ok=True)
    folder = args.data / "abandoned"
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--drain-s", str(DRAIN_S))
    with Server(folder, args.memory, log=args.data / "abandoned.log", options=options) as server:
        connection = Connection(server.port, timeout=600)
        create(connection, "long")
        create(connection, "other")
        upload(server.port, "other", 1_000, lambda n: {"k": n}, 500)
        names = [{"name": f"tag {n}"} for n in range(8)]
        upload(server.port, "long", args.points, lambda n: {"t": f"{n} " + "x" * 400, "tags": names}, 500)
        wait_green(connection, "long", 600)
        others(server, seconds, quiet, report)
        stops(server, args, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
