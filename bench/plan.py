"""`ramekin plan` against what is measured afterwards: memory, recall and queries a second of collections of different shape.

    for each shape:   plan with a sample, plan without   -->   lab minram: upload, a cold start at the budget, every query
                      memory within 5 %, recall within .01, queries/s within 20 %; without a sample: inside the range

Memory is the kernel's highest charge while the queries ran; it is what the plan calls `bytes` of all together.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import make_synthetic  # noqa: E402
from bench.report import Report  # noqa: E402
from harness import exact  # noqa: E402
from harness.server import binary, mib  # noqa: E402


@dataclass
class Shape:
    rows: int
    dim: int
    memory: str
    set: str = "lsa"  # a set of the data folder, or "drawn"

    @property
    def name(self) -> str:
        return f"{self.rows:,} x {self.dim}, {self.memory}"


SHAPES = [
    Shape(1_000_000, 100, "127MiB"),
    Shape(1_000_000, 100, "56MiB"),
    Shape(1_000_000, 100, "1GiB"),
    Shape(500_000, 100, "64MiB", "syn"),
    Shape(1_000_000, 25, "64MiB"),
    Shape(100_000, 768, "64MiB", "drawn"),
    Shape(50_000, 1536, "96MiB", "drawn"),
]
SMALL = [Shape(20_000, 32, "32MiB", "drawn"), Shape(40_000, 100, "32MiB", "drawn")]
QUERIES = 2_000  # of a set that is drawn; of others all there are


def vectors(shape: Shape, args, out: Path) -> tuple[Path, Path, Path]:
    """Base, queries and truth of a shape, as files."""
    if shape.set == "drawn":
        both = make_synthetic.draw(shape.rows + QUERIES, shape.dim, 1)
        base, query = both[: shape.rows], both[shape.rows :]
    else:
        base = np.load(args.data / f"{shape.set}_base.npy", mmap_mode="r")[: shape.rows, : shape.dim]
        query = np.load(args.data / f"{shape.set}_query.npy")[:, : shape.dim]
    base, query = (np.array(part, dtype=np.float32, order="C") for part in (base, query))
    for part in (base, query):
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
    files = [out / f"{part}.npy" for part in ("base", "query", "truth")]
    for file, part in zip(files, (base, query, exact.nearest(base, query, 10).astype(np.int32)), strict=True):
        np.save(file, part)
    return tuple(files)


def planned(shape: Shape, sample: Path | None, out: Path) -> dict:
    command = [binary(), "plan", "--points", shape.rows, "--dim", shape.dim, "--memory", shape.memory, "--data", out, "--json"]
    command += ["--sample", sample] if sample else []
    return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout)["total"]


def measured(shape: Shape, files: tuple[Path, Path, Path], args, out: Path) -> dict:
    base, query, truth = files
    command = [binary(), "lab", "minram", "--base", base, "--query", query, "--truth", truth, "--memory", shape.memory, "--json"]
    command += ["--repeats", args.repeats, "--disk-file", "0", "--page-cache", "files", "--out", out / "minram"]
    told = json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {name: value["median"] for name, value in told["limits"][0].items() if isinstance(value, dict)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".bench"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    report = Report("plans against measurements", args)
    out = args.data / "plan"
    for shape in SMALL if args.small else SHAPES:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        files = vectors(shape, args, out)
        plan, blind = planned(shape, files[0], out), planned(shape, None, out)
        seen = measured(shape, files, args, out)

        def value(of: dict, name: str) -> float:
            return of[name]["value"]

        report.row(f"{shape.name}: fits", f"{plan['fits']}, least {mib(plan['least_budget'])}", "yes", plan["fits"])
        if "peak_bytes" in seen:
            ratio = value(plan, "bytes") / seen["peak_bytes"] - 1
            figure = f"{mib(value(plan, 'bytes'))} for {mib(seen['peak_bytes'])}, {ratio:+.1%}"
            report.row(f"{shape.name}: memory", figure, "within 5 %", abs(ratio) <= 0.05, speed=True)
        apart = value(plan, "recall") - seen["recall"]
        figure = f"{value(plan, 'recall'):.4f} for {seen['recall']:.4f}, {apart:+.4f}"
        report.row(f"{shape.name}: recall@10", figure, "within .01", abs(apart) <= 0.01, speed=True)
        rate, real = value(plan, "queries_per_second"), seen["requests_per_second"]
        figure = f"{rate:,.0f} for {real:,.0f}, {rate / real - 1:+.0%}"
        report.row(f"{shape.name}: queries/s", figure, "within 20 %", abs(rate / real - 1) <= 0.2, speed=True)
        reads = f"{value(plan, 'reads_per_query'):.1f} for {seen.get('reads_per_query', float('nan')):.1f}"
        report.row(f"{shape.name}: reads a query", reads)
        names = {"recall": "recall", "queries_per_second": "requests_per_second", "reads_per_query": "reads_per_query"}
        outside = [name for name, own in names.items() if own in seen and not blind[name]["low"] <= seen[own] <= blind[name]["high"]]
        text = ", ".join(f"{name} {blind[name]['low']:,.3g} to {blind[name]['high']:,.3g}" for name in names)
        report.row(f"{shape.name}: ranges without a sample", f"{text}{'; not: ' + ', '.join(outside) if outside else ''}", "hold", not outside, speed=True)
    shutil.rmtree(out, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
