"""etcd's door beside a real etcd: one generator drives both, by turns, and one table shows each figure of both and their ratio.

    both at once, each driven in turn, several rounds     puts, gets, transactions, watchers, ranges, slow watchers
    one at a time, in a folder of its own                 1,000 versions a key; 1,000,000 keys: memory, counts, pages, snapshot, delete

Both keep their data on the same file system, and etcd syncs as it does by default. Ramekin runs inside its budget in a cgroup,
etcd in one that only counts. The generator's own processor time is shown beside the servers'; all share the machine. Syncs are
counted by the kernel's tracepoints (`perf stat`): fsync and fdatasync as system calls, and those that are asked of an io_uring.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import peers_etcd  # noqa: E402
from bench.peers_etcd import drive  # noqa: E402
from bench.report import processor, spread  # noqa: E402
from harness.cgroup import MIB  # noqa: E402

SIDES = ["etcd", "ramekin"]
SYNCS = ["syscalls:sys_enter_fsync", "syscalls:sys_enter_fdatasync", "io_uring:io_uring_submit_req"]
SYNC_OF_A_RING = 3  # IORING_OP_FSYNC


class Table:
    """Figures of both sides by name; `more_is_better` says which way a ratio above 1 is good."""

    def __init__(self):
        self.figures: dict[str, dict[str, list[float]]] = {}
        self.notes: list[str] = []

    def add(self, side: str, name: str, value: float | None) -> None:
        if value is not None:
            self.figures.setdefault(name, {}).setdefault(side, []).append(float(value))
            print(f"  .. {side}: {name}: {value:,.2f}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def rows(self) -> list[list[str]]:
        rows = []
        for name, sides in self.figures.items():
            medians = {side: statistics.median(values) for side, values in sides.items()}
            told = [spread(sides[side], digits(medians[side])) if side in sides else "-" for side in SIDES]
            ratio = f"{medians['ramekin'] / medians['etcd']:.2f}" if len(medians) == 2 and medians["etcd"] else "-"
            rows.append([name, *told, ratio])
        return rows

    def print(self, title: str) -> None:
        rows = [["", *SIDES, "ramekin / etcd"], *self.rows()]
        wide = [max(len(row[column]) for row in rows) for column in range(4)]
        print(f"\n{title}")
        for name, *told in rows:
            print(f"  {name:<{wide[0]}}  " + "  ".join(f"{text:>{width}}" for text, width in zip(told, wide[1:], strict=True)))
        for text in self.notes:
            print(f"  {text}")


def digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


class Syncs:
    """Counts what a process asks to be synced, as long as it is open; None where the kernel does not tell."""

    def __init__(self, pid: int):
        self.file = tempfile.NamedTemporaryFile("r")
        command = ["perf", "stat", "-x,", "-o", self.file.name, "-p", str(pid)]
        for event in SYNCS:
            command += ["-e", event] + (["--filter", f"opcode=={SYNC_OF_A_RING}"] if event.startswith("io_uring") else [])
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL) if shutil.which("perf") else None
        time.sleep(0.3)

    def end(self) -> tuple[int, int] | None:
        """Calls, and those of a ring."""
        if self.process is None:
            return None
        self.process.send_signal(2)
        self.process.wait()
        counts = {event: int(count) for count, event in re.findall(r"^(\d+),,([\w:]+)", Path(self.file.name).read_text(), re.M)}
        if set(counts) != set(SYNCS):
            return None
        return counts[SYNCS[0]] + counts[SYNCS[1]], counts[SYNCS[2]]


def per_operation(table: Table, side: str, server, name: str, command: str, is_write: bool = False, **options) -> None:
    syncs = Syncs(server.pid) if is_write else None
    before = server.cpu_s()
    found = drive(server.door, command, **options)
    used = server.cpu_s() - before
    operations = max(1, found["operations"])
    table.add(side, f"{name}: operations/s", found["per_s"])
    table.add(side, f"{name}: p99, ms", found["p99_ms"])
    table.add(side, f"{name}: server's processor, us/op", used * 1e6 / operations)
    table.add(side, f"{name}: generator's processor, us/op", found["cpu_s"] * 1e6 / operations)
    if found["refused"]:
        table.note(f"{side}, {name}: {found['refused']} requests were refused for want of memory")
    counted = syncs.end() if syncs else None
    if counted:
        table.add(side, f"{name}: operations a sync", operations / max(1, sum(counted)))
        table.note(f"{side} syncs by {'an io_uring' if counted[1] > counted[0] else 'system calls'}")
    elif is_write:
        table.note("syncs are not counted: `perf` cannot trace here")


def puts_64(table, side, server, scale):
    per_operation(table, side, server, "puts, 64 clients", "puts", True, clients=64, seconds=scale.seconds)


def puts_1(table, side, server, scale):
    per_operation(table, side, server, "puts, 1 client", "puts", True, clients=1, seconds=scale.seconds)


def gets(table, side, server, scale):
    per_operation(table, side, server, "linearizable gets, 64 clients", "gets", clients=64, seconds=scale.seconds)


def txns(table, side, server, scale):
    per_operation(table, side, server, "transactions, 64 clients", "txns", True, clients=64, seconds=scale.seconds)


def watch(table, side, server, scale):
    for streams, per_stream in ((1, 100), (100, 1)):
        found = drive(server.door, "watch", watchers=100, per_stream=per_stream, rate=1000, seconds=scale.seconds, prefix="/watch/")
        name = f"put to event, 100 watchers on {streams} stream{'s' * (streams > 1)}, 1,000 puts/s"
        table.add(side, f"{name}: p50, ms", found["p50_ms"])
        table.add(side, f"{name}: p99, ms", found["p99_ms"])
        if found["events"] != found["wanted"]:
            table.note(f"{side}: {found['events']} of {found['wanted']} events came: WRONG")


def ranges(table, side, server, scale):
    found = drive(server.door, "range", prefix="/range/", times=scale.times)
    table.add(side, "range of 10,000 keys, warm: p50, ms", found["p50_ms"])


def slow(table, side, server, scale):
    found = drive(server.door, "slow", watchers=1000, per_stream=1, keys=scale.slow, prefix="/slow/")
    table.add(side, "1,000 watchers that do not read, on one connection: puts/s", found["per_s"])
    table.add(side, "1,000 watchers that do not read: put's p99, ms", found["p99_ms"])
    table.add(side, "1,000 watchers that do not read: until they had all, s", found["caught_up_s"])
    table.add(side, "1,000 watchers that do not read: server resident, MiB", server.resident() / MIB)
    if found["refused"]:
        table.note(f"{side}: with slow watchers {found['refused']} puts were refused for want of memory, and tried again")
    if found["wrong"]:
        table.note(f"{side}: slow watchers saw {found['wrong']} events out of order or ended: WRONG")


BY_TURNS = {"puts-64": puts_64, "puts-1": puts_1, "gets": gets, "txns": txns, "watch": watch, "range": ranges, "slow": slow}


def versions(table, side, open_server, scale):
    with open_server(side) as server:
        filled = drive(server.door, "fill", prefix="/range/", keys=scale.versioned, versions=scale.versions, value=64, batch=100)
        name = f"{scale.versions:,} versions of each of {scale.versioned:,} keys"
        table.add(side, f"{name}: written, versions/s", filled["per_s"])
        found = drive(server.door, "range", prefix="/range/", times=scale.times)
        table.add(side, f"{name}: range, p50, ms", found["p50_ms"])


def memory_of(table, side, server, when: str) -> None:
    table.add(side, f"memory {when}: resident, MiB", server.resident() / MIB)
    if server.cgroup:
        table.add(side, f"memory {when}: charge (with the page cache), MiB", server.charge() / MIB)


def many(table, side, open_server, scale):
    name = f"{scale.keys:,} keys of 64 + 256"
    server = open_server(side).start()
    try:
        filled = drive(server.door, "fill", prefix="/many/", keys=scale.keys, batch=100)
        table.add(side, f"{name}: filled in, keys/s", filled["per_s"])
        table.add(side, f"{name}: highest resident while filled in, MiB", server.status_kib("VmHWM") / 1024)
        table.add(side, f"{name}: highest charge while filled in, MiB", server.peak() / MIB if server.cgroup else None)
        time.sleep(scale.settle)
        memory_of(table, side, server, f"with {name}, settled")
        table.add(side, f"{name}: on disk, MiB", server.disk_bytes() / MIB)
        found = drive(server.door, "range", prefix="/many/", count_only=True, times=scale.times)
        assert found["count"] == scale.keys
        table.add(side, f"{name}: count, p50, ms", found["p50_ms"])
        found = drive(server.door, "pages", prefix="/many/", keys=scale.keys, limit=500, rate=1000, seconds=2 * scale.seconds)
        table.add(side, f"{name}: pages of 500 of an old revision under 1,000 puts/s: p50, ms", found["p50_ms"])
        table.add(side, f"{name}: pages of 500 of an old revision under 1,000 puts/s: p99, ms", found["p99_ms"])
        found = drive(server.door, "snapshot")
        if "unimplemented" in found:
            table.note(f"{side} has no snapshots: {found['unimplemented']}")
        else:
            table.add(side, f"{name}: snapshot, s", found["elapsed_s"])
            table.add(side, f"{name}: snapshot, MiB", found["bytes"] / MIB)
        server.stop()
        server.start()
        table.add(side, f"{name}: start until ready, s", server.started_s)
        found = drive(server.door, "range", prefix="/many/", count_only=True, times=1)
        memory_of(table, side, server, f"with {name}, after a restart")
        found = drive(server.door, "delete", prefix="/many/")
        assert found["deleted"] == scale.keys, found
        table.add(side, f"{name}: deleted in one request, s", found["elapsed_s"])
        server.stop()
    finally:
        server.close()


ALONE = {"versions": versions, "many": many}


class Scale:
    def __init__(self, small: bool, rounds: int | None):
        self.rounds = rounds or (2 if small else 5)
        self.seconds, self.times, self.settle = (1, 5, 2) if small else (5, 20, 15)
        self.keys, self.versioned, self.versions = (20_000, 1000, 50) if small else (1_000_000, 10_000, 1000)
        self.slow = 200 if small else 2000


def by_turns(table: Table, chosen: list[str], open_server, scale: Scale) -> None:
    servers = {}
    try:
        for side in SIDES:
            servers[side] = open_server(side).start()
            if "range" in chosen:
                drive(servers[side].door, "fill", prefix="/range/", keys=10_000)
            drive(servers[side].door, "fill", keys=10_000)  # what is got and put
        for number in range(scale.rounds):
            for name in chosen:
                for side in SIDES if number % 2 == 0 else reversed(SIDES):
                    BY_TURNS[name](table, side, servers[side], scale)
        for side, server in servers.items():
            table.add(side, "at the end: highest resident, MiB", server.status_kib("VmHWM") / 1024)
            server.stop()
    finally:
        for server in servers.values():
            server.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = [*BY_TURNS, *ALONE]
    parser.add_argument("--only", action="append", choices=names, help="a row by name; may be given several times")
    parser.add_argument("--memory", default="64MiB", help="budget of Ramekin")
    parser.add_argument("--keys", type=int, help="of the row that fills a server with many (default 1,000,000)")
    parser.add_argument("--without-etcd", action="store_true", help="of rows that fill a server of their own only Ramekin's")
    parser.add_argument("--rounds", type=int, help="(default 5, 2 with --small); rows that fill a server of their own have one")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    peers_etcd.build()
    args.data.mkdir(parents=True, exist_ok=True)
    chosen = args.only or names
    table, scale = Table(), Scale(args.small, args.rounds)
    scale.keys = args.keys or scale.keys
    with tempfile.TemporaryDirectory(prefix="versions-", dir=args.data) as work:

        def open_server(side: str):
            folder = Path(tempfile.mkdtemp(dir=work)) / side
            return peers_etcd.Etcd(folder, options=("--quota-backend-bytes", str(8 << 30))) if side == "etcd" else peers_etcd.Ramekin(folder, args.memory)

        turns = [name for name in BY_TURNS if name in chosen]
        if turns:
            by_turns(table, turns, open_server, scale)
        for name, row in ALONE.items():
            if name in chosen:
                for side in SIDES[args.without_etcd :]:
                    row(table, side, open_server, scale)
    title = f"etcd {peers_etcd.version()} and Ramekin at {args.memory}{' (small)' if args.small else ''}"
    table.print(title)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"what": row[0], "figure": f"{row[2]} to etcd's {row[1]}: {row[3]}", "goal": "", "ok": None} for row in table.rows()]
        machine = {"processor": processor(), "system": platform.platform()}
        kept = {"title": title, "small": args.small, "machine": machine, "rows": rows, "figures": table.figures, "notes": table.notes}
        args.json.write_text(json.dumps(kept, indent=1))
    return 1 if any(text.endswith("WRONG") for text in table.notes) else 0


if __name__ == "__main__":
    sys.exit(main())
