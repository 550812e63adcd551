"""Sorted records under a memory limit: Ramekin's runs beside fjall and LMDB, in one run.

    the stores in turn, several rounds: a process of its own in a cgroup ─► load, scan, cold gets, warm gets ─► medians, ratios
"""

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.cgroup import MIB, Cgroup  # noqa: E402

HERE = Path(__file__).resolve().parent / "runs"
STORES = ["ramekin", "fjall", "lmdb"]
PHASES = ["load", "settle", "scan", "cold get", "warm get"]


def measure(store: str, keys: int, budget: int, limit: int, folder: Path) -> dict:
    work = Path(tempfile.mkdtemp(dir=folder))
    group = Cgroup.make(f"runs-{store}", limit * MIB)
    try:
        command = shlex.join([str(HERE / "target/release/runs-bench"), store, str(work), str(keys), str(budget)])
        if group is not None:
            command = f"echo $$ > {shlex.quote(str(group.folder))}/cgroup.procs && exec {command}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        outcome = {line["phase"]: line for line in lines}
        if done.returncode != 0:
            outcome["failed"] = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        if group is not None:
            outcome["charge"] = group.peak() / MIB
        return outcome
    finally:
        if group is not None:
            group.remove()
        shutil.rmtree(work, ignore_errors=True)


def rate(outcome: dict, phase: str) -> float:
    line = outcome.get(phase)
    return line["operations"] / line["seconds"] if line else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--budget", type=int, default=120, help="MiB")
    parser.add_argument("--limit", type=int, default=128, help="MiB of the cgroup")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=HERE, check=True)
    stores = args.stores.split(",")
    outcomes = {store: [] for store in stores}
    for number in range(args.rounds):
        for store in stores:
            outcome = measure(store, args.keys, args.budget, args.limit, args.folder)
            outcomes[store].append(outcome)
            rates = ", ".join(f"{phase} {rate(outcome, phase):,.0f}/s" for phase in PHASES if phase in outcome)
            print(f"  .. {number + 1}: {store}: {outcome.get('failed', '')} {rates}", flush=True)
    print(f"\n{args.keys:,} keys of 16 + 16 bytes, budget {args.budget} MiB, cgroup {args.limit} MiB; operations/s, medians of {args.rounds}")
    median = {
        store: {phase: statistics.median(rate(outcome, phase) for outcome in outcomes[store]) for phase in PHASES} for store in stores
    }
    for store in stores:
        charge = max(outcome.get("charge", 0) for outcome in outcomes[store])
        row = "  ".join(f"{phase} {median[store][phase]:>11,.0f}" for phase in PHASES)
        print(f"  {store:8} {row}  charge {charge:6.1f} MiB")
    settled = outcomes["ramekin"][0].get("settle") if "ramekin" in outcomes else None
    if settled is None:
        return 1
    raw = args.keys * 32
    goals = [
        ("space", settled["disk_bytes"] / raw, "<= 1.35", settled["disk_bytes"] / raw <= 1.35),
        ("write amplification", settled["written_bytes"] / raw, "<= 10", settled["written_bytes"] / raw <= 10),
        ("bytes a key held", settled["held_bytes"] / args.keys, "(with an empty memtable)", True),
    ]
    peers = [store for store in stores if store != "ramekin"]
    for phase in ["load", "scan", "cold get"]:
        if peers:
            ratio = median["ramekin"][phase] / max(median[peer][phase] for peer in peers)
            goals.append((f"{phase}, to the best", ratio, ">= 1", ratio >= 1))
    for peer, least in [("fjall", 1.0), ("lmdb", 0.8)]:
        if peer in peers:
            ratio = median["ramekin"]["warm get"] / median[peer]["warm get"]
            goals.append((f"warm get, to {peer}", ratio, f">= {least}", ratio >= least))
    for name, value, goal, ok in goals:
        print(f"  {name:28} {value:8.2f}  {goal:26} {'ok' if ok else 'MISSED'}")
    return 0 if all(ok for *_, ok in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
