"""The engine by a store of counters: commands a second and core, syncs, cold keys, one unit of a million deletes.

    crates/engine/examples/toy.rs, built for it, several rounds ─► medians and ratios
    crates/engine/examples/large.rs ─► killed while it makes a unit of 100 MB, or of a million deletes ─► whole or absent?
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.report import Report  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def measure(binary: Path, folder: Path) -> dict:
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        done = subprocess.run([binary, work], capture_output=True, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {line["figure"]: line for line in lines}
    finally:
        shutil.rmtree(work, ignore_errors=True)


KEYS = 1_000_000


def kill(binary: Path, folder: Path, delay: float) -> dict:
    """One life that is killed so long after its unit has begun, unless it has ended before."""
    process = subprocess.Popen([binary, folder], stdout=subprocess.PIPE, text=True)
    life = {"slowest_us": 0}
    killer = None
    for text in process.stdout:
        line = json.loads(text)
        life |= line
        if "begun" in line:
            killer = threading.Timer(delay, process.kill)
            killer.start()
    status = process.wait()
    if killer is not None:
        killer.cancel()
    life["killed"] = status == -signal.SIGKILL
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a life ended with {status}")
    return life


def kills(binary: Path, folder: Path, count: int, report: Report) -> None:
    work = Path(tempfile.mkdtemp(dir=folder))
    rng, lives, longest = random.Random(1), [], {0: 1.0, KEYS: 1.0}
    try:
        while sum(life["killed"] for life in lives) < count:
            before = lives[-1]["found"] if lives else 0
            # A little beyond the end at most, half of them near it; the two kinds of units take differently long.
            life = kill(binary, work, rng.choice([rng.uniform(0, 1.1), rng.uniform(0.9, 1.1)]) * longest[before])
            lives.append(life)
            if "ended_s" in life:
                longest[life["found"]] = life["ended_s"]
            else:
                longest[life["found"]] = max(longest[life["found"]], 0.2) * 1.02
    finally:
        shutil.rmtree(work, ignore_errors=True)
    torn = [life["found"] for life in lives if life["found"] not in (0, KEYS)]
    ended = sum(not life["killed"] for life in lives)
    report.row(f"units of 100 MB or 1,000,000 deletes, {count} killed, {ended} ended: found torn", str(len(torn)), "0", not torn)
    slowest = max(life["slowest_us"] for life in lives) / 1000
    typical = statistics.median(life["slowest_us"] for life in lives) / 1000
    report.row("slowest other write of a life, ms: median, most", f"{typical:.1f}, {slowest:.1f}", "<= 50", slowest <= 50)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="not part of the small run")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "-p", "ramekin-engine", "--examples"], cwd=ROOT, check=True)
    examples = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples"
    rounds = [measure(examples / "toy", args.data) for _ in range(args.rounds)]
    report = Report("engine: a store of counters", args)

    def median(of) -> float:
        return statistics.median(of(one) for one in rounds)

    def row(what: str, of, goal: str, is_ok, text: str = "{:,.2f}") -> None:
        value = median(of)
        spread = ", ".join(text.format(of(one)) for one in rounds)
        report.row(what, f"{text.format(value)} ({spread})", goal, is_ok(value))

    row(
        "50 callers, batches of 16, interval: commands a second and core",
        lambda one: one["throughput"]["commands"] / one["throughput"]["cpu_s"],
        ">= 1,000,000",
        lambda value: value >= 1e6,
        "{:,.0f}",
    )
    row("1,000 conditional writes to one key without waiting: syncs", lambda one: one["unwaited"]["syncs"], "<= 16", lambda value: value <= 16, "{:.0f}")
    row("64 waiting clients: commands a sync", lambda one: one["waiting"]["commands"] / one["waiting"]["syncs"], ">= 16", lambda value: value >= 16)
    row("1,000 writes to cold keys, to their reads at depth 32", lambda one: one["cold"]["writes_s"] / one["cold"]["reads_s"], "<= 3", lambda value: value <= 3)

    def beside(one: dict) -> float:
        alone = statistics.mean(one[name]["commands"] / one[name]["wall_s"] for name in ("63 warm alone", "63 warm alone again"))
        with_cold = one["63 warm beside a cold one"]
        return alone / (with_cold["commands"] / with_cold["wall_s"])

    row("63 warm writers beside a cold one: slower by", beside, "<= 1.2", lambda value: value <= 1.2)
    row("one unit of 1,000,000 deletes, seconds", lambda one: one["large unit"]["wall_s"], "-", lambda value: True)
    row("slowest write without it, ms", lambda one: one["slowest write alone"]["us"] / 1000, "-", lambda value: True)
    row("slowest other write beside it, ms", lambda one: one["slowest write beside it"]["us"] / 1000, "<= 50", lambda value: value <= 50)
    if args.kills:
        kills(examples / "large", args.data, args.kills, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
