"""Writes that depend on what is stored: how many share a sync, beside an older server.

    the servers in turn, several rounds ─► 1,000 changes of one point at once │ 64 clients that wait │ 1,000 cold points ─► ratios
    once more under strace ─► syncs

Each change of the one point adds a key to its payload, so a change that did not see the one before it would show.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bench.report import Report, spread  # noqa: E402
from harness.rest import Connection, request_bytes, wait_green  # noqa: E402
from harness.server import Server  # noqa: E402

DIM = 16
AT_ONCE = 1000
CLIENTS = 64
EACH = 30
COLD = 1000


class Lines:
    """Requests over connections that are kept, each taken by the next that is free."""

    def __init__(self, port: int, count: int):
        self.port, self.count = port, count

    async def __aenter__(self):
        self.free: asyncio.Queue = asyncio.Queue()
        for _ in range(self.count):
            self.free.put_nowait(await asyncio.open_connection("127.0.0.1", self.port))
        return self

    async def __aexit__(self, *_):
        while not self.free.empty():
            self.free.get_nowait()[1].close()

    async def ask(self, method: str, path: str, body) -> dict:
        raw = request_bytes(method, path, json.dumps(body).encode())
        while True:
            reader, writer = line = await self.free.get()
            try:
                writer.write(raw)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                answer = json.loads(await reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                # Older servers close connections where too many are open.
                line = await asyncio.open_connection("127.0.0.1", self.port)
                continue
            finally:
                self.free.put_nowait(line)
            if " 429 " in head.split("\r\n")[0]:
                await asyncio.sleep(0.01)
                continue
            assert " 200 " in head.split("\r\n")[0], (head, answer)
            return answer["result"]


def points(ids, number: int) -> dict:
    return {"points": [{"id": i, "vector": [float(i % 7)] * DIM, "payload": {"n": number}} for i in ids]}


async def one_point(port: int, name: str) -> float:
    async with Lines(port, 128) as lines:
        await lines.ask("PUT", f"/collections/{name}/points?wait=true", points([1], 0))
        changes = [
            lines.ask("POST", f"/collections/{name}/points/payload?wait=true", {"payload": {f"k{i}": i}, "points": [1]})
            for i in range(AT_ONCE)
        ]
        begun = time.perf_counter()
        await asyncio.gather(*changes)
        took = time.perf_counter() - begun
        found = await lines.ask("POST", f"/collections/{name}/points", {"ids": [1], "with_payload": True})
    assert found[0]["payload"] == {"n": 0} | {f"k{i}": i for i in range(AT_ONCE)}, "a change did not see the one before"
    return took


async def clients(port: int, name: str, first: int) -> float:
    async with Lines(port, CLIENTS) as lines:
        own = range(first, first + CLIENTS)
        await lines.ask("PUT", f"/collections/{name}/points?wait=true", points(own, 0))

        async def chain(point: int) -> None:
            for seen in range(EACH):
                body = points([point], seen + 1) | {"update_filter": {"must": [{"key": "n", "match": {"value": seen}}]}}
                await lines.ask("PUT", f"/collections/{name}/points?wait=true", body)

        begun = time.perf_counter()
        await asyncio.gather(*map(chain, own))
        took = time.perf_counter() - begun
        found = await lines.ask("POST", f"/collections/{name}/points", {"ids": list(own), "with_payload": True})
    assert [point["payload"]["n"] for point in found] == [EACH] * CLIENTS, "a conditional write was lost"
    return took


async def cold(port: int, name: str, count: int, seed: int) -> tuple[float, float]:
    """Reads of stored points, 32 at a time, and conditional writes of as many others."""
    ids = random.Random(seed).sample(range(10_000, 10_000 + count), 2 * COLD)
    async with Lines(port, 32) as lines:
        reads = [lines.ask("POST", f"/collections/{name}/points", {"ids": [i], "with_payload": True}) for i in ids[:COLD]]
        begun = time.perf_counter()
        await asyncio.gather(*reads)
        read = time.perf_counter() - begun
    async with Lines(port, 128) as lines:
        of = {"update_filter": {"must": [{"key": "n", "match": {"value": 0}}]}}
        writes = [lines.ask("PUT", f"/collections/{name}/points?wait=true", points([i], 1) | of) for i in ids[COLD:]]
        begun = time.perf_counter()
        await asyncio.gather(*writes)
        return read, time.perf_counter() - begun


def fill(server: Server, name: str, count: int) -> None:
    connection = Connection(server.port, timeout=600)
    connection.must("PUT", f"/collections/{name}", {"vectors": {"size": DIM, "distance": "Dot"}})
    text = "x" * 900
    for first in range(10_000, 10_000 + count, 500):
        made = [
            {"id": i, "vector": np.full(DIM, i % 11, dtype=float).tolist(), "payload": {"n": 0, "t": text}}
            for i in range(first, first + 500)
        ]
        connection.must("PUT", f"/collections/{name}/points?wait=true", {"points": made})
    wait_green(connection, name, 120)


def round_of(binary: Path, data: Path, count: int, seed: int) -> dict:
    os.environ["RAMEKIN_BIN"] = str(binary)
    shutil.rmtree(data, ignore_errors=True)
    try:
        with Server(data, "64MiB") as server:
            fill(server, "c", count)
            took = {"one point": asyncio.run(one_point(server.port, "c"))}
            took["clients"] = asyncio.run(clients(server.port, "c", 2))
            took["cold reads"], took["cold writes"] = asyncio.run(cold(server.port, "c", count, seed))
            return took
    finally:
        shutil.rmtree(data, ignore_errors=True)


def syncs_of(binary: Path, data: Path) -> dict | None:
    """Syncs of the first two kinds of work, counted by strace."""
    if shutil.which("strace") is None:
        return None
    os.environ["RAMEKIN_BIN"] = str(binary)
    shutil.rmtree(data, ignore_errors=True)
    counted = {}
    try:
        with Server(data, "64MiB") as server:
            fill(server, "c", 500)
            for what, work in {"one point": one_point(server.port, "c"), "clients": clients(server.port, "c", 2)}.items():
                out = data.with_suffix(".strace")
                command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(out), "-p", str(server.pid)]
                tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                time.sleep(0.5)
                asyncio.run(work)
                tracer.terminate()
                tracer.wait()
                counted[what] = sum("sync(" in line and "resumed" not in line for line in out.read_text().splitlines())
                out.unlink()
        return counted
    finally:
        shutil.rmtree(data, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--peer", type=Path, help="an older server's binary, for ratios")
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    from harness.server import binary

    own = binary()
    count, rounds = (20_000, 1) if args.small else (100_000, 5)
    rounds = args.rounds or rounds
    report = Report("Writes that depend on what is stored, 64 MiB", args)
    binaries = {"own": own} | ({"peer": args.peer} if args.peer else {})
    args.data.mkdir(parents=True, exist_ok=True)
    took: dict[str, list[dict]] = {name: [] for name in binaries}
    for turn in range(rounds):
        for name, path in binaries.items():
            took[name].append(round_of(path, args.data / f"dependent-{name}", count, turn))
    counts = {"one point": AT_ONCE, "clients": CLIENTS * EACH, "cold writes": COLD, "cold reads": COLD}
    titles = {
        "one point": f"{AT_ONCE:,} changes of one point at once",
        "clients": f"{CLIENTS} clients, conditional upserts",
        "cold writes": f"{COLD:,} conditional upserts of cold points",
        "cold reads": f"{COLD:,} reads of cold points, 32 at a time",
    }
    for what, title in titles.items():
        rates = [counts[what] / turn[what] for turn in took["own"]]
        report.row(title, f"{spread(rates)} a second")
        if args.peer:
            ratios = [theirs[what] / ours[what] for ours, theirs in zip(took["own"], took["peer"], strict=True)]
            goal = what in ("one point", "clients")
            ok = statistics.median(ratios) >= 20 if goal else None
            report.row("  beside the older server", f"{spread(ratios, 1)}x", ">= 20x" if goal else "", ok, speed=True)
    ratios = [turn["cold writes"] / turn["cold reads"] for turn in took["own"]]
    report.row("cold conditional upserts beside cold reads", f"{spread(ratios, 2)}x the time", "<= 3x", statistics.median(ratios) <= 3, speed=True)
    syncs = syncs_of(own, args.data / "dependent-syncs")
    if syncs is not None:
        report.row(f"syncs of {AT_ONCE:,} changes of one point, 128 under way", str(syncs["one point"]))
        report.row(f"syncs of {CLIENTS * EACH:,} conditional upserts of {CLIENTS} clients", str(syncs["clients"]))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
