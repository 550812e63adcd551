"""Wide vectors: 100,000 of 768 and of 1,536 dimensions inside a tenth of their size, beside libraries that hold all of them.

    ramekin --memory (rows x dim x 4 / 10) in its cgroup  <-- REST, light load generator, 1 and 8 connections
    qdrant-edge-py, hnswlib, faiss                            in process, one thread, no limit; each at recall >= .95

The vectors are text again (`make_text_vectors.py --dim`): factors of a TF-IDF by truncated SVD, whose spectrum falls off
slowly, so that of 768 dimensions 590 hold nine tenths of the variance; the report says it of those that were used. They
are made on first use and stay in the data folder. `--set syn` draws the mixture of `make_synthetic.py` instead.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, make_synthetic, peers  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import exact, light  # noqa: E402
from harness.cgroup import MIB, margin  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

HERE = Path(__file__).resolve().parent
LEAST_MIB = 24  # a tenth of a small run's vectors is less than an empty server needs
SMALL_NUMBERS = 3_200_000  # of all vectors of a small run: enough that they are indexed
SWEPT = 1_000  # queries with which a peer's setting is found
FAISS_SETTINGS = [(probes, factor) for probes in (16, 32, 64, 96, 128, 192) for factor in (4, 16)]  # of 256 lists
BODY_NUMBERS = 150_000  # of a request of the upload, some 2 MB


def read(dim: int, args) -> dataset.Dataset:
    """Text vectors from the data folder, made if they are not there; drawn ones where those are asked for."""
    rows = args.rows or (SMALL_NUMBERS // dim if args.small else 100_000)
    if args.small or args.set == "syn":
        drawn = make_synthetic.draw(rows + args.queries, dim, 0)
        base, query = drawn[:rows], drawn[rows:]
        return dataset.Dataset("drawn", base, query, exact.nearest(base, query, dataset.K))
    folder = args.data / f"wide-lsa-{dim}"
    if not (folder / "lsa_truth.npy").exists():
        print(f"making {rows:,} text vectors of {dim} dimensions in {folder}", file=sys.stderr, flush=True)
        sizes = ["--rows", rows, "--queries", args.queries, "--dim", dim]
        subprocess.run([sys.executable, HERE / "make_text_vectors.py", "--out", folder, *map(str, sizes)], check=True)
    base, query, truth = (np.load(folder / f"lsa_{part}.npy") for part in ("base", "query", "truth"))
    if len(base) != rows or len(query) < args.queries:
        sys.exit(f"{folder} holds {len(base):,} vectors and {len(query):,} queries; remove it, or ask for so many")
    return dataset.Dataset("lsa", base, query[: args.queries], truth[: args.queries])


def dimensions_of(base: np.ndarray, *shares: float) -> list[int]:
    """How many principal directions hold these shares of the variance."""
    spectrum = np.linalg.eigvalsh(np.cov(base[:20_000].T))[::-1]
    return [int(np.searchsorted(np.cumsum(spectrum) / spectrum.sum(), share)) + 1 for share in shares]


class Edge:
    """qdrant-edge-py as a peer among the others: one query after the other."""

    name = "edge"
    settings = peers.EFS

    def __init__(self, data: dataset.Dataset, folder: Path):
        from bench import edge

        self.data, self.folder = data, folder
        self.shard = edge.Edge(folder, data)
        self.built_s = self.shard.ready_s

    def measure(self, ef: int) -> tuple[float, float]:
        self.shard.queries = [q.tolist() for q in self.data.query]
        found, rate = self.shard.search(ef)
        return exact.recall(found, self.data.truth), rate

    def close(self) -> None:
        del self.shard
        shutil.rmtree(self.folder, ignore_errors=True)


def measure_ours(server: Server, requests: list[bytes], args, rates: dict[str, list[float]]) -> None:
    for connections in (1, 8):
        seen = light.run(args.data, server.port, requests, connections, 0)
        if list(seen["statuses"]) != ["200"]:
            raise RuntimeError(f"searches failed: {seen['statuses']}")
        rates[f"REST {connections}"].append(seen["per_second"])


def one(dim: int, args, report: Report) -> None:
    data = read(dim, args)
    raw = data.base.nbytes
    budget = max(raw // 10 // MIB, LEAST_MIB if args.small else 0)
    folder = args.data / "wide-ours"
    shutil.rmtree(folder, ignore_errors=True)
    label = f"{dim:,}"
    part = dataset.Dataset(data.name, data.base, data.query[:SWEPT], data.truth[:SWEPT])
    half, most = dimensions_of(data.base, 0.5, 0.9)
    held = f"{half} hold half of the variance, {most} nine tenths"
    report.row(f"{label} dimensions: {len(data.base):,} vectors ({data.name}), {mib(raw)}", held)
    # A small run asks our server alone: the libraries take longer than all the rest to build and to set.
    makers = {} if args.small else {"edge": Edge, "hnswlib": peers.Hnswlib, "faiss": peers.Faiss}
    with Server(folder, f"{budget}MiB", log=args.data / "wide.log") as server:
        client.create(server, dim)
        start = time.monotonic()
        client.upload_light(server, data.base, batch=max(1, BODY_NUMBERS // dim))
        wait_green(Connection(server.port), client.NAME, 3_600, tick=client.teller(10))
        limit = mib(server.budget + margin(server.budget)) if server.cgroup else "no cgroup"
        report.row(f"{label}: --memory {budget}MiB (cgroup: {limit}), to green", f"{time.monotonic() - start:.0f} s")
        recall, _ = client.search(server, data)
        report.row(f"{label}: recall@10, default parameters", f"{recall:.4f}", f">= {args.recall}", recall >= args.recall)
        theirs, chosen = {}, {}
        for name, make in makers.items():
            theirs[name] = peer = make(part, args.data / "wide-edge" if make is Edge else args.threads)
            if name == "faiss":
                peer.settings = FAISS_SETTINGS
            chosen[name], reached, _ = peers.best(peer, args.recall)
            peer.data = data
            missing = "" if reached >= args.recall else ", its best"
            report.row(f"{label}, {name}: ready after {peer.built_s:.0f} s", f"recall {reached:.4f} at {chosen[name]}{missing}")
        rates: dict[str, list[float]] = {"REST 1": [], "REST 8": [], **{name: [] for name in theirs}}
        requests = [client.query_request(q) for q in data.query]
        for _ in range(args.rounds):
            measure_ours(server, requests, args, rates)
            for name, peer in theirs.items():
                rates[name].append(peer.measure(chosen[name])[1])
        peak, kills = server.peak(), server.cgroup.kills() if server.cgroup else 0
        report.row(f"{label}: killed; highest charge", f"{kills} times; {mib(peak)}", f"never; <= {budget} MiB", kills == 0 and peak <= server.budget)
    for name, values in rates.items():
        report.row(f"{label}, {name}{' connections' if 'REST' in name else ''}: queries/s", spread(values))
    for name in theirs:
        ratios = [f"{spread([a / b for a, b in zip(rates[ours], rates[name], strict=True)], 2)}x" for ours in ("REST 1", "REST 8")]
        report.row(f"{label}: queries/s, ramekin / {name}", f"{ratios[0]} with 1 connection, {ratios[1]} with 8", "reported")
    for peer in theirs.values():
        peer.close()
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--dim", default="768,1536", help="which, one after the other")
    parser.add_argument("--recall", type=float, help="at default parameters (default 0.95; 0.9 with --small, whose few queries say no more)")
    parser.add_argument("--threads", type=int, default=2, help="of hnswlib and faiss while they build")
    parser.add_argument("--rounds", type=int, help="(default 5, 1 with --small)")
    args = parser.parse_args()
    args.recall = args.recall or (0.9 if args.small else 0.95)
    args.rounds = args.rounds or (1 if args.small else 5)
    args.queries = args.queries or (500 if args.small else 4_000)
    report = Report("wide vectors in a tenth of their size", args)
    for dim in args.dim.split(","):
        one(int(dim), args, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
