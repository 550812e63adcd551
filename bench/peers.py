"""In process, one core: our index one query at a time against hnswlib and faiss in one batch call each.

    build     ours, hnswlib (M 16, ef_construction 100), faiss (IVF4096,PQ50x4fs,RFlat)     on two cores
    sweep     each finds its fastest setting that reaches the recall
    rounds    ours, hnswlib, faiss, ours, hnswlib, faiss, ...                               on one core, ratios by round

Everything of ours is resident, and queries are asked one after the other.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import exact  # noqa: E402
from harness.server import REPOSITORY  # noqa: E402

K = dataset.K
# Both that are told an `ef` go up the same steps.
EFS = [16, 24, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 52, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512]


def installed(name: str) -> bool:
    """Small runs do without a peer that is not here; only `make bench` installs them."""
    return importlib.util.find_spec(name) is not None


class Ours:
    """The example `ann_bench` of the ann crate: builds into a folder once, then opens that index for each measurement."""

    name = "ramekin"
    settings = EFS

    def __init__(self, data: dataset.Dataset, folder: Path, cores: int):
        self.folder = folder / "peers"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for part in ("base", "query", "truth"):
            np.save(self.folder / f"{part}.npy", getattr(data, part))
        example = ["-p", "ramekin-ann", "--example", "ann_bench"]
        subprocess.run(["cargo", "build", "--release", "--locked", *example], cwd=REPOSITORY, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
        files = [self.folder / f"{part}.npy" for part in ("base", "query")]
        self.command = [target / "release/examples/ann_bench", *files, "--truth", self.folder / "truth.npy", "--dir", self.folder]
        told = self.run(["--threads", str(cores), "--ef", ""])
        self.built_s = float(re.search(r"built in ([\d.]+) s", told).group(1))

    def run(self, options: list[str]) -> str:
        done = subprocess.run(list(map(str, [*self.command, *options])), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"ann_bench: {done.stderr[-2000:]}")
        return done.stdout

    def measure(self, ef: int) -> tuple[float, float]:
        told = self.run(["--reuse", "--ef", str(ef)])
        row = re.search(rf"^{ef}\s+([\d.]+)\s+([\d.]+)", told, re.M)
        return float(row.group(1)), float(row.group(2))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Hnswlib:
    name = "hnswlib"
    settings = EFS

    def __init__(self, data: dataset.Dataset, cores: int):
        import hnswlib

        self.data = data
        start = time.monotonic()
        self.index = hnswlib.Index("ip", data.dim)
        self.index.init_index(len(data.base), M=16, ef_construction=100, random_seed=100)
        self.index.add_items(np.asarray(data.base), num_threads=cores)
        self.built_s = time.monotonic() - start
        self.index.set_num_threads(1)

    def measure(self, ef: int) -> tuple[float, float]:
        self.index.set_ef(ef)
        start = time.perf_counter()
        found, _ = self.index.knn_query(self.data.query, K, num_threads=1)
        took = time.perf_counter() - start
        return exact.recall(list(found), self.data.truth), len(found) / took

    def close(self) -> None:
        del self.index


class Faiss:
    name = "faiss"
    settings = [(probes, factor) for probes in (8, 12, 16, 24, 32, 48, 64, 96, 128) for factor in (4, 8, 16, 32)]

    def __init__(self, data: dataset.Dataset, cores: int):
        import faiss

        self.faiss, self.data = faiss, data
        faiss.omp_set_num_threads(cores)
        lists = 4096 if len(data.base) >= 200_000 else 256
        self.what = f"IVF{lists},PQ{data.dim // 2}x4fs,RFlat"
        start = time.monotonic()
        self.index = faiss.index_factory(data.dim, self.what, faiss.METRIC_INNER_PRODUCT)
        base = np.ascontiguousarray(data.base)
        self.index.train(base[: min(len(base), 50 * lists)])
        self.index.add(base)
        self.built_s = time.monotonic() - start

    def measure(self, setting: tuple[int, int]) -> tuple[float, float]:
        probes, factor = setting
        self.faiss.omp_set_num_threads(1)
        self.index.k_factor = factor
        self.faiss.extract_index_ivf(self.index.base_index if hasattr(self.index, "base_index") else self.index).nprobe = probes
        start = time.perf_counter()
        _, found = self.index.search(self.data.query, K)
        took = time.perf_counter() - start
        return exact.recall(list(found), self.data.truth), len(found) / took

    def close(self) -> None:
        del self.index


def best(peer, wanted: float):
    """The fastest setting that reaches the recall; the most accurate one if none does."""
    seen = []
    for setting in peer.settings:
        recall, rate = peer.measure(setting)
        seen.append((setting, recall, rate))
        print(f"  .. {peer.name} {setting}: recall {recall:.4f}, {rate:,.0f}/s", file=sys.stderr, flush=True)
        if recall >= wanted and not isinstance(setting, tuple):
            break
    reaching = [s for s in seen if s[1] >= wanted]
    return max(reaching, key=lambda s: s[2]) if reaching else max(seen, key=lambda s: s[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, help="(default 5, 2 with --small)")
    parser.add_argument("--cores", type=int, default=2, help="to build with")
    parser.add_argument("--without", action="append", default=[], choices=["ramekin", "hnswlib", "faiss"])
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.small else 5)
    data = dataset.read(args)
    report = Report(f"in process, one core: {len(data.base):,} x {data.dim} ({data.name}), recall@10 >= {args.recall}", args)
    makers = {
        "ramekin": lambda: Ours(data, args.data, args.cores),
        "hnswlib": lambda: Hnswlib(data, args.cores),
        "faiss": lambda: Faiss(data, args.cores),
    }
    peers, chosen = {}, {}
    for name, make in makers.items():
        if name not in args.without:
            peers[name] = make()
            report.row(f"{name}: build, {args.cores} cores", f"{peers[name].built_s:.1f} s")
    for name, peer in peers.items():
        chosen[name] = best(peer, args.recall)
        setting, recall, _ = chosen[name]
        report.row(f"{name}: recall@10", f"{recall:.4f} at {setting}", f">= {args.recall}", recall >= args.recall)
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            rates[name].append(peer.measure(chosen[name][0])[1])
    for name, values in rates.items():
        manner = "one by one" if name == "ramekin" else "one batch call"
        report.row(f"{name}: queries/s, {manner}", spread(values))
    for name, goal in (("hnswlib", 2.0), ("faiss", 1.2)):
        if name in rates and "ramekin" in rates:
            ratios = sorted(a / b for a, b in zip(rates["ramekin"], rates[name], strict=True))
            ratio = ratios[len(ratios) // 2]
            report.row(f"queries/s, ramekin / {name}", f"{spread(ratios, 2)}x", f">= {goal}x", ratio >= goal, speed=True)
    if "hnswlib" in peers and "ramekin" in peers:
        ratio = peers["ramekin"].built_s / peers["hnswlib"].built_s
        report.row("build, ramekin / hnswlib", f"{ratio:.2f}x", "<= 0.4x", ratio <= 0.4, speed=True)
    for peer in peers.values():
        peer.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
