"""How long an upload takes, from the first request to green, against the time in which hnswlib builds in memory.

    hnswlib, two threads --> ramekin without a limit --> hnswlib --> ramekin ...       <= 0.8 x hnswlib
    ramekin --memory 127MiB, then 56MiB, each in its cgroup: never killed              <= 1.5 x without a limit

Load is light: columns of 2,000 points a request, every request made before the clock runs, sent over two connections.
"""

import argparse
import random
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, peers  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness.cgroup import margin  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

UNLIMITED = "8GiB"


@dataclass
class Uploaded:
    sent_s: float
    green_s: float
    points: int
    indexed: int
    recall: float
    cpu_s: float
    peak: int
    kills: int
    limit: str


def upload(memory: str, requests: list[bytes], data: dataset.Dataset, args) -> Uploaded:
    folder = args.data / "upload"
    shutil.rmtree(folder, ignore_errors=True)
    with Server(folder, memory, limited=memory != UNLIMITED, log=args.data / "upload.log") as server:
        client.create(server, data.dim)
        start = time.monotonic()
        client.upload_prepared(server, requests, args.connections)
        sent_s = time.monotonic() - start
        wait_green(Connection(server.port), client.NAME, args.wait, tick=client.teller(10), every_s=0.1)
        green_s = time.monotonic() - start
        cpu_s, peak = server.cpu_s(), server.peak()
        indexed = Connection(server.port).must("GET", f"/collections/{client.NAME}")["indexed_vectors_count"]
        count = Connection(server.port).must("POST", f"/collections/{client.NAME}/points/count", {"exact": True})["count"]
        recall, _ = client.search(server, data)
        kills = server.cgroup.kills() if server.cgroup else 0
        limit = f"in {mib(server.budget + margin(server.budget))}" if server.cgroup else "no cgroup"
    shutil.rmtree(folder, ignore_errors=True)
    return Uploaded(sent_s, green_s, count, indexed, recall, cpu_s, peak, kills, limit)


def wanted(args) -> float:
    """A small index measures its recall on some sixty of its own points: it may miss the wish by a little."""
    return 0.93 if args.small else 0.95


def against_hnswlib(requests: list[bytes], data: dataset.Dataset, args, report: Report) -> list[Uploaded]:
    """Both in turn, as many times as there are rounds."""
    ours, theirs = [], []
    for _ in range(args.rounds):
        if not args.small or peers.installed("hnswlib"):
            peer = peers.Hnswlib(data, args.threads)
            theirs.append(peer.built_s)
            peer.close()
        ours.append(upload(UNLIMITED, requests, data, args))
    label = f"--memory {UNLIMITED}, no limit"
    green = [one.green_s for one in ours]
    report.row(f"{label}: from the first request to green", f"{spread(green, 1)} s, sent after {spread([o.sent_s for o in ours], 1)} s")
    report.row(f"{label}: processor time", f"{spread([one.cpu_s for one in ours], 1)} s, highest charge {mib(max(one.peak for one in ours))}")
    report.row(f"{label}: indexed when it was green", ", ".join(f"{one.indexed:,} of {one.points:,}" for one in ours))
    recall = min(one.recall for one in ours)
    report.row(f"{label}: recall@10, default parameters", f"{recall:.4f}", f">= {wanted(args)}", recall >= wanted(args))
    if theirs:
        report.row(f"hnswlib: build, {args.threads} threads", f"{spread(theirs, 1)} s")
        ratios = [a / b for a, b in zip(green, theirs, strict=True)]
        report.row("ramekin / hnswlib", f"{spread(ratios, 2)}x", "<= 0.8x", statistics.median(ratios) <= 0.8, speed=True)
    else:
        report.row("ramekin / hnswlib", "hnswlib is not installed here")
    return ours


def in_limit(memory: str, requests: list[bytes], data: dataset.Dataset, unlimited_s: float, args, report: Report) -> None:
    one = upload(memory, requests, data, args)
    label = f"--memory {memory}, {one.limit}"
    budget = Server(args.data, memory).budget
    ratio = one.green_s / unlimited_s
    report.row(f"{label}: from the first request to green", f"{one.green_s:.1f} s, sent after {one.sent_s:.1f} s, processor {one.cpu_s:.1f} s")
    report.row(f"{label}: against no limit", f"{ratio:.2f}x", "<= 1.5x", ratio <= 1.5, speed=True)
    report.row(f"{label}: points counted", f"{one.points:,}, {one.indexed:,} of them indexed", f"= {len(data.base):,}", one.points == len(data.base))
    report.row(f"{label}: killed", f"{one.kills} times", "never", one.kills == 0)
    report.row(f"{label}: highest charge", mib(one.peak), f"<= {mib(budget)}", one.peak <= budget)
    report.row(f"{label}: recall@10, default parameters", f"{one.recall:.4f}", f">= {wanted(args)}", one.recall >= wanted(args))


def one_after_another(data: dataset.Dataset, args, report: Report) -> None:
    """Small uploads of drawn sizes on many connections, a small question between: a sender that waits for a timer of the kernel, for
    200 ms and more, shows at once."""
    folder, rnd = args.data / "upload", random.Random(1)
    shutil.rmtree(folder, ignore_errors=True)
    prepared = [client.prepare_upload(data.base[: rnd.randint(100, 120_000) // (data.dim * 10) + 1], len(data.base))[0] for _ in range(50)]
    with Server(folder, "64MiB", log=args.data / "upload.log") as server:
        client.create(server, data.dim)
        took = []
        for _ in range(50):
            connection = Connection(server.port)
            for _ in range(20):
                start = time.monotonic()
                assert connection.send(rnd.choice(prepared)).status == 200
                took.append((time.monotonic() - start) * 1000)
                connection.must("GET", f"/collections/{client.NAME}")
            connection.close()
    shutil.rmtree(folder, ignore_errors=True)
    waited = sum(one >= 200 for one in took) / len(took)
    report.row("1,000 uploads of up to 120 KB on 50 connections", f"{spread(took, 1)} ms")
    report.row("of them 200 ms or longer, as the kernel's timer is", f"{waited:.1%}", "<= 1 %", waited <= 0.01, speed=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="127MiB,56MiB", help="budgets of the limited uploads")
    parser.add_argument("--rounds", type=int, help="of hnswlib and the upload without a limit (default 2, 1 with --small)")
    parser.add_argument("--threads", type=int, default=2, help="of hnswlib's build")
    parser.add_argument("--batch", type=int, default=2_000, help="points of a request")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--wait", type=float, default=3_600, help="seconds until green at most")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.small else 2)
    data = dataset.read(args)
    report = Report(f"upload: {len(data.base):,} x {data.dim} ({data.name}), over REST to green", args)
    requests = client.prepare_upload(data.base, args.batch)
    report.row("load", f"{len(requests):,} prepared requests of {mib(len(requests[0]))}, {args.connections} connections")
    one_after_another(data, args, report)
    ours = against_hnswlib(requests, data, args, report)
    unlimited_s = statistics.median(one.green_s for one in ours)
    for memory in args.memory.split(","):
        in_limit(memory, requests, data, unlimited_s, args, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
