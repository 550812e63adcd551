"""All rows, one after the other: `make bench` in full, `make bench-small` in small.

    rows.py --> one process a row --> its table, its .json in the data folder --> a summary, and an exit status
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

# name, script, options in full, options in small (None: not part of the small run)
ROWS = [
    ("ingest-256", "ingest.py", ["--memory", "256MiB"], None),
    ("ingest-128", "ingest.py", ["--memory", "128MiB"], []),
    ("flood", "flood.py", [], []),
    ("empty", "empty.py", [], []),
    ("catalogue", "catalogue.py", [], []),
    ("giveback", "giveback.py", [], []),
    ("kill9", "kill9.py", [], []),
    ("versions-kill", "versions_kill.py", [], []),
    ("fsync", "fsync_rate.py", [], []),
    ("peers", "peers.py", [], None),
    ("peers-syn", "peers.py", ["--set", "syn"], None),
    ("edge", "edge.py", [], None),
    ("speed", "speed.py", [], []),
    ("upload", "upload.py", [], []),
    ("moving", "moving.py", [], []),
    ("stalls", "stalls.py", [], []),
    ("new-points", "new_points.py", [], []),
    ("dependent", "dependent.py", [], []),
    ("abandoned", "abandoned.py", [], []),
    ("wide", "wide.py", [], []),
    ("plan", "plan.py", [], []),
    ("filters", "filters.py", [], []),
    ("filtered", "filtered.py", [], []),
    ("attack", "attack.py", [], None),  # in small: tests/test_attack.py
    ("arbiter", "arbiter.py", [], []),
    ("engine", "engine.py", [], None),
    ("runs", "runs.py", [], None),
    ("versions", "versions.py", [], None),
    ("soak", "soak.py", [], []),
    ("six", "six.py", [], None),
]
SETS = [("lsa", "make_text_vectors.py"), ("syn", "make_synthetic.py")]


def make_sets(data: Path) -> None:
    for name, script in SETS:
        if not (data / f"{name}_truth.npy").exists():
            print(f"making the {name} vectors in {data}", flush=True)
            subprocess.run([sys.executable, HERE / script, "--out", data], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--small", action="store_true")
    names = [name for name, *_ in ROWS]
    parser.add_argument("--only", action="append", choices=names, help="a row by name; may be given several times")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    if not args.small:
        make_sets(args.data)
    summary = []
    for name, script, full, small in ROWS:
        options = small if args.small else full
        if options is None or (args.only and name not in args.only):
            continue
        result = args.data / "results" / f"{name}{'-small' if args.small else ''}.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, HERE / script, "--data", args.data, "--json", result, *options]
        print(f"\n=== {name}: {script} {' '.join(options)}", flush=True)
        start = time.monotonic()
        status = subprocess.run([*map(str, command), *(["--small"] if args.small else [])], stdin=subprocess.DEVNULL).returncode
        rows = json.loads(result.read_text())["rows"] if result.exists() else []
        missed = [row["what"] for row in rows if row["ok"] is False]
        summary.append((name, status, missed, time.monotonic() - start))
    print("\nsummary")
    for name, status, missed, took in summary:
        verdict = "ok" if status == 0 else "missed: " + "; ".join(missed) if missed else f"failed with {status}"
        print(f"  {name:<12} {took:6.0f} s  {verdict}")
    failed = sum(status != 0 for _, status, _, _ in summary)
    print(f"bench: {len(summary) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
