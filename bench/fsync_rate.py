"""Durable writes: one point a request from 1 and from 64 clients, against redis-server with appendfsync always.

    the disk itself   pwrite + fdatasync in a loop     \\
    redis-server      SET of the same bytes             >  interleaved, several rounds, same disk, same load generator
    ramekin           PUT points, acknowledged durable /

fsyncs a second are the flushes that the kernel counts on the block device, everybody's together.
"""

import argparse
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, make_synthetic  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import light  # noqa: E402
from harness.rest import points_body, request_bytes  # noqa: E402
from harness.server import Server, free_port  # noqa: E402

DIM = 100
CLIENTS = (1, 64)


def flushes(folder: Path) -> int | None:
    """Flushes completed by the disk that holds the folder, as the kernel counts them."""
    device = os.stat(folder).st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (path / "partition").exists():
        path = path.parent
    try:
        fields = (path / "stat").read_text().split()
        return int(fields[15]) if len(fields) > 15 else None
    except OSError:
        return None


def counted(folder: Path, work) -> tuple[float, float | None]:
    """(writes a second, flushes a second) of `work`, which returns its own rate and time."""
    before = flushes(folder)
    rate, elapsed = work()
    after = flushes(folder)
    return rate, None if before is None or after is None else (after - before) / elapsed


def disk_alone(folder: Path, seconds: float) -> float:
    """Blocks of 4 KiB written past the page cache and synced, one after the other."""
    block = mmap.mmap(-1, 4096)
    path = folder / "fsync-probe"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, 64 << 20)
    os.fsync(fd)
    count, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        os.pwrite(fd, block, count * 4096 % (64 << 20))
        os.fdatasync(fd)
        count += 1
    rate = count / (time.monotonic() - start)
    os.close(fd)
    path.unlink()
    return rate


class Redis:
    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            if subprocess.run(["redis-cli", "-p", str(self.port), "ping"], capture_output=True).stdout.strip() == b"PONG":
                return
            time.sleep(0.05)
        raise RuntimeError("redis-server does not answer")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="128MiB", help="the server's budget")
    parser.add_argument("--seconds", type=float, help="of each measurement (default 5, 1.5 with --small)")
    parser.add_argument("--rounds", type=int, help="(default 5, 1 with --small)")
    args = parser.parse_args()
    seconds = args.seconds or (1.5 if args.small else 5)
    rounds = args.rounds or (1 if args.small else 5)
    report = Report(f"durable writes, 1 point of {DIM} dimensions a request", args)
    args.data.mkdir(parents=True, exist_ok=True)
    vectors = make_synthetic.draw(20_000, DIM, 3)
    upsert = f"/collections/{client.NAME}/points?wait=false"
    ours = [request_bytes("PUT", upsert, points_body(i, vectors[i : i + 1])) for i in range(len(vectors))]
    theirs = []
    for i, vector in enumerate(vectors):
        value = vector.astype(np.float32).tobytes()
        key = b"point:%d" % i
        theirs.append(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))

    def loaded(port: int, requests: list[bytes], clients: int, wire: str):
        def work():
            seen = light.run(args.data, port, requests, clients, seconds, wire)
            if set(seen["statuses"]) != {"200"}:
                raise RuntimeError(f"{wire}: {seen['statuses']}")
            return seen["per_second"], seen["elapsed_s"]

        return work

    redis = Redis(args.data / "redis") if shutil.which("redis-server") and shutil.which("redis-cli") else None
    folder = args.data / "fsync"
    shutil.rmtree(folder, ignore_errors=True)
    alone, rates, syncs = [], {}, {}
    with Server(folder, args.memory, log=args.data / "fsync.log") as server:
        client.create(server, DIM)
        for _ in range(rounds):
            alone.append(disk_alone(args.data, seconds))
            for clients in CLIENTS:
                peers = [("ramekin", server.port, ours, "http")]
                if redis:
                    peers.append(("redis", redis.port, theirs, "resp"))
                for name, port, requests, wire in peers:
                    rate, flushed = counted(args.data, loaded(port, requests, clients, wire))
                    rates.setdefault((name, clients), []).append(rate)
                    syncs.setdefault((name, clients), []).append(flushed)
    if redis:
        redis.stop()
    shutil.rmtree(folder, ignore_errors=True)
    report.row("the disk alone, pwrite + fdatasync of 4 KiB", f"{spread(alone)} /s")
    for clients in CLIENTS:
        for name in ("ramekin", "redis"):
            if (name, clients) in rates:
                flushed = [f for f in syncs[name, clients] if f is not None]
                seen = f", {spread(flushed)} flushes/s" if flushed else ""
                report.row(f"{name}, {clients} client{'s' if clients > 1 else ''}", f"{spread(rates[name, clients])} writes/s{seen}")
        if redis:
            ratios = [a / b for a, b in zip(rates["ramekin", clients], rates["redis", clients], strict=True)]
            ratio = statistics.median(ratios)
            report.row(f"ratio, {clients} client{'s' if clients > 1 else ''}", f"{spread(ratios, 2)}x", ">= 0.5x", ratio >= 0.5, speed=True)
        else:
            report.row("ratio", "redis-server is not installed (Debian: redis-server)")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
