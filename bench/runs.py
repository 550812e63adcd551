"""Sorted records under a memory limit: Ramekin's runs beside fjall and LMDB, in one run.

    the stores in turn, several rounds: a process of its own in a cgroup ─► load, scan, cold gets, warm gets ─► medians, ratios
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
    parser.add_argument("--fjall-limit", type=int, default=1024, help="MiB of fjall's cgroup: in 128 and in 256 it is killed while it loads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="not part of the small run")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=HERE, check=True)
    stores = args.stores.split(",")
    outcomes = {store: [] for store in stores}
    for number in range(args.rounds):
        for store in stores:
            limit = args.fjall_limit if store == "fjall" else args.limit
            outcome = measure(store, args.keys, args.budget, limit, args.data)
            outcomes[store].append(outcome)
            rates = ", ".join(f"{phase} {rate(outcome, phase):,.0f}/s" for phase in PHASES if phase in outcome)
            print(f"  .. {number + 1}: {store}: {outcome.get('failed', '')} {rates}", flush=True)
    report = Report(f"{args.keys:,} keys of 16 + 16 bytes, budget {args.budget} MiB, cgroup {args.limit} MiB", args)
    median = {
        store: {phase: statistics.median(rate(outcome, phase) for outcome in outcomes[store]) for phase in PHASES} for store in stores
    }
    for store in stores:
        charge = max(outcome.get("charge", 0) for outcome in outcomes[store])
        rates = ", ".join(f"{phase} {median[store][phase]:,.0f}" for phase in PHASES)
        is_ours = store == "ramekin"
        report.row(f"{store}: operations/s", rates)
        report.row(f"{store}: highest charge, MiB", f"{charge:.1f}", f"<= {args.budget}" if is_ours else "", charge <= args.budget if is_ours else None)
    if "ramekin" in stores:
        compare(report, outcomes["ramekin"], median, args.keys)
    return report.end()


def compare(report: Report, ours: list[dict], median: dict, keys: int) -> None:
    settled = next((outcome["settle"] for outcome in ours if "settle" in outcome), None)
    report.row("every round of ours ended well", str(settled is not None), "", all("failed" not in outcome for outcome in ours))
    if settled is None:
        return
    raw = keys * 32
    space, written = settled["disk_bytes"] / raw, settled["written_bytes"] / raw
    report.row("space, to the records", f"{space:.2f}", "<= 1.35", space <= 1.35)
    report.row("write amplification", f"{written:.2f}", "<= 10", written <= 10)
    report.row("bytes a key held, with an empty memtable", f"{settled['held_bytes'] / keys:.2f}")
    peers = [store for store in median if store != "ramekin"]
    for phase in ["load", "scan", "cold get"] if peers else []:
        ratio = median["ramekin"][phase] / max(median[peer][phase] for peer in peers)
        report.row(f"{phase}, to the best", f"{ratio:.2f}", ">= 1", ratio >= 1)
    for peer, least in [("fjall", 1.0), ("lmdb", 0.8)]:
        if peer in peers:
            ratio = median["ramekin"]["warm get"] / median[peer]["warm get"]
            report.row(f"warm get, to {peer}", f"{ratio:.2f}", f">= {least}", ratio >= least)


if __name__ == "__main__":
    sys.exit(main())
