"""Stores that share one budget: idle ones beside the store of vectors, load that moves, a budget that moves under load.

    crates/node/examples/shares.rs, built for it, in a cgroup of 64 MiB and the margin; alone and beside idle stores by turns
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.report import Report  # noqa: E402
from harness.cgroup import MIB, Cgroup, margin  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BUDGET = 64 * MIB
IDLE_MAX = 512 << 10


def measure(binary: Path, mode: str, folder: Path) -> list[dict]:
    group = Cgroup.make(f"shares-{mode}", BUDGET + margin(BUDGET))
    try:
        command = shlex.join([str(binary), mode, str(folder)])
        if group is not None:
            command = f"echo $$ > {shlex.quote(str(group.folder))}/cgroup.procs && exec {command}"
        # The C library's allocator gives back to the kernel what the server's does.
        tunables = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
        done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **tunables})
        return [json.loads(line) for line in done.stdout.splitlines()]
    finally:
        if group is not None:
            group.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="one round")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    build = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "ramekin-node", "--example", "shares"]
    subprocess.run(build, cwd=ROOT, check=True)
    binary = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples/shares"
    work = Path(tempfile.mkdtemp(dir=args.data))
    try:
        measure(binary, "alone", work)  # makes the points
        pairs = []
        for number in range(1 if args.small else args.rounds):
            order = ["alone", "idle"] if number % 2 == 0 else ["idle", "alone"]
            pairs.append({mode: measure(binary, mode, work)[0] for mode in order})
        moves = measure(binary, "moves", work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report = Report("three stores on one budget of 64 MiB", args)

    def ratio(what: str) -> float:
        return statistics.median(pair["idle"][what] / pair["alone"][what] for pair in pairs)

    rate = ratio("rate")
    report.row("searches a second beside two idle stores, to alone", f"{rate:.3f}", ">= 0.98", rate >= 0.98, speed=True)
    charge = ratio("charged")
    report.row("the kernel's charge beside two idle stores, to alone", f"{charge:.3f}", "<= 1.02", charge <= 1.02)
    idle = max(pair["idle"]["idle_stores"] for pair in pairs) / 2
    report.row("an idle store holds, KiB", f"{idle / 1024:,.0f}", "<= 512", idle <= IDLE_MAX)
    moved = [line for line in moves if line["figure"] == "share moved"]
    slowest = max(line["came_ms"] for line in moved)
    report.row("a store in use has its share after, ms", f"{slowest:,}", "<= 2,000", slowest <= 2000)
    budgets = [line for line in moves if line["figure"] == "budget moved"]
    most = max(line["claimed"] / line["budget"] for line in budgets)
    report.row("claims to the budget, 64 -> 24 -> 64 MiB under load", f"{most:.3f}", "<= 1", most <= 1)
    charged = max(line["charged"] / line["budget"] for line in budgets)
    report.row("the kernel's charge to the budget", f"{charged:.3f}", "<= 1", charged <= 1)
    shares = all(sum(line["shares"]) <= line["budget"] for line in budgets)
    report.row("shares add up to the budget at most", str(shares), "", shares)
    refused = next(line for line in moves if line["figure"] == "refused")
    report.row("requests refused for good", f"{refused['for_good']:,}", "0", refused["for_good"] == 0)
    report.row("requests told to try again", f"{refused['for_the_moment']:,}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
