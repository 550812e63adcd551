"""Attacks drawn from the table of all endpoints and fields, at several budgets, one server after the other.

    deck of cells: endpoint x field x (large, slow, abandoned, unread, packed, stalled)  -->  --attacks a budget, from there on in the deck
    each budget   --> killed, charge, small queries within 1 s, books       all together --> how many cells stayed empty

Each body is at least half of what the server takes, or malformed. `--seed` and a number make an attack again: `--only 17`.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.attack import WAYS  # noqa: E402
from harness.server import mib  # noqa: E402
from tests.attack import run, surface  # noqa: E402

BUDGETS = ["24MiB", "48MiB", "256MiB"]


def table(cells: Counter) -> None:
    """How often each field was aimed at, by way."""
    wide = max(len(f"{endpoint} {field}") for endpoint, field in surface.aims())
    print(f"{'endpoint x field':<{wide}} " + "".join(f"{way:>10}" for way in WAYS))
    for endpoint, field in surface.aims():
        print(f"{f'{endpoint} {field}':<{wide}} " + "".join(f"{cells[endpoint, field, way]:>10}" for way in WAYS))


def start_of(memory: str) -> int:
    """Where in the deck a budget begins, so that runs at each of them share it out."""
    return BUDGETS.index(memory) * len(run.deck()) // len(BUDGETS) if memory in BUDGETS else 0


def kept(file: Path | None) -> Counter:
    """The cells that runs before, and runs beside this one, have filled."""
    return Counter({tuple(cell): count for cell, count in json.loads(file.read_text())}) if file and file.exists() else Counter()


def at_budget(report: Report, args, memory: str) -> Counter:
    """Attacks at one budget; the cells that they filled."""
    attacks = run.plan(args.seed, args.attacks, start_of(memory) if args.start is None else args.start)
    if args.only is not None:
        attacks = [attack for attack in attacks if attack.number in args.only]
    folder = args.data / "attack"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    result = run.run(folder, memory, attacks, args.seed, within_s=None if args.small else 1.0, threads=args.threads)
    took = sorted(result.took) or [0.0]
    report.row(f"{memory}: attacks carried out", f"{len(result.done):,} of {len(attacks):,} in {(time.monotonic() - began) / 60:.1f} minutes")
    report.row(f"{memory}: outcomes", ", ".join(f"{count} x {word}" for word, count in Counter(d.outcome for d in result.done).most_common()))
    measured = "highest charge" if result.limited else "NOT LIMITED: highest resident set"
    report.row(f"{memory}: {measured}", mib(result.highest), f"<= {memory}", result.highest <= run.Server(folder, memory).budget)
    report.row(f"{memory}: {len(took):,} small questions meanwhile", f"p99 {took[len(took) * 99 // 100]:.3f} s, slowest {took[-1]:.3f} s", "<= 1 s", took[-1] <= 1.0, speed=True)
    report.row(f"{memory}: faults", str(len(result.faults)), "none", not result.faults)
    for fault in result.faults[:20]:
        print(f"  {memory}: {fault}")
    shutil.rmtree(folder, ignore_errors=True)
    return Counter(result.cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="budgets, with commas (default 24MiB,48MiB,256MiB)", default=",".join(BUDGETS))
    parser.add_argument("--attacks", type=int, help="at each budget (default 2000, 20 with --small)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", type=int, action="append", help="this attack alone; may be given several times")
    parser.add_argument("--start", type=int, help="from this cell of the deck on, at each budget (default: the budgets share it out)")
    parser.add_argument("--threads", type=int, default=3, help="of each of two processes that attack")
    parser.add_argument("--cells", type=Path, help="a file that keeps which cells were filled, over several runs")
    args = parser.parse_args()
    args.attacks = args.attacks or (20 if args.small else 2_000)
    print(f"seed {args.seed}", flush=True)
    report = Report(f"drawn attacks, seed {args.seed}", args)
    cells = kept(args.cells)
    for memory in args.memory.split(","):
        filled = at_budget(report, args, memory)
        cells = (kept(args.cells) if args.cells else cells) + filled
        if args.cells:
            args.cells.write_text(json.dumps([[list(cell), count] for cell, count in cells.items()]))
    if not args.small:
        table(cells)
    deck = run.deck()
    empty = sum(cells[cell] == 0 for cell in deck)
    full = not args.small and args.only is None
    report.row(f"cells of {len(deck):,} that stayed empty", f"{empty:,}", "none" if full else "(none in full)", empty == 0 if full else None)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
