"""Real text vectors for the benchmarks: latent semantic analysis of the text that is found on this machine.

    comments, docstrings, manual pages --> sentences in windows --> TF-IDF --> SVD --> lsa_base.npy    rows x dim f32
                                                                                     lsa_query.npy   held out
                                                                                     lsa_truth.npy   exact top 10

Vectors have unit length and are distinct. Another machine has other text, so figures from two machines compare only
if the sets are equally hard: `--check` prints hnswlib's recall@10 (M 16, ef_construction 100, ef 64), which must be
.963 +- .015.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo.embed import Embedder  # noqa: E402
from demo.harvest import cargo_registry, harvest, python_sources, rust_books, system_texts  # noqa: E402
from harness import exact  # noqa: E402

RECALL_WANTED, RECALL_SLACK = 0.963, 0.015
SAMPLE = 150_000  # texts the factors are fitted on


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def gather(wanted: int) -> list[str]:
    """Distinct texts; trees are read in order of how much they read like documentation, until there are enough."""
    seen: set[bytes] = set()
    texts: list[str] = []
    for tree in cargo_registry() + python_sources() + rust_books() + system_texts():
        before = len(texts)
        for snippet in harvest([tree], overlap=True, seen=seen):
            texts.append(snippet.text)
            if len(texts) >= wanted:
                break
        say(f"{len(texts) - before:>9,} texts  {tree}  (together {len(texts):,} of {wanted:,})")
        if len(texts) >= wanted:
            break
    return texts


def distinct(vectors: np.ndarray) -> np.ndarray:
    """Row numbers of the first of each group of equal vectors, without those of no length."""
    keys = np.round(vectors * 4096).astype(np.int16)
    weights = np.random.default_rng(1).integers(1, 1 << 62, size=vectors.shape[1], dtype=np.int64)
    hashes = np.concatenate(
        [(keys[at : at + 50_000].astype(np.int64) * weights).sum(1) for at in range(0, len(keys), 50_000)]
    )
    _, first = np.unique(hashes, return_index=True)
    first.sort()
    return first[np.any(keys[first] != 0, axis=1)]


def build(out: Path, rows: int, held: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = gather(int((rows + held) * 1.12))
    order = rng.permutation(len(texts))
    say(f"fitting on {min(SAMPLE, len(texts)):,} of {len(texts):,} texts")
    embedder = Embedder(dim, seed=seed).fit([texts[i] for i in order[:SAMPLE]])
    vectors = np.empty((len(texts), dim), np.float32)
    at, start = 0, time.time()
    for part in embedder.batches(texts):
        vectors[at : at + len(part)] = part
        at += len(part)
        say(f"embedded {at:,} of {len(texts):,}, {at / (time.time() - start):,.0f} a second")
    del texts
    kept = distinct(vectors)
    say(f"{len(kept):,} distinct vectors of {len(vectors):,}")
    if len(kept) < rows + held:
        sys.exit(f"too little text: {len(kept):,} distinct vectors, {rows + held:,} wanted; ask for fewer with --rows")
    kept = rng.permutation(kept)[: rows + held]
    base, query = vectors[kept[:rows]], vectors[kept[rows:]]
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "lsa_base.npy", base)
    np.save(out / "lsa_query.npy", query)
    say("exact neighbours of the held-out queries")
    np.save(out / "lsa_truth.npy", exact.nearest(base, query, 10))


def check(out: Path, name: str, ef: int) -> bool:
    import hnswlib

    base, query, truth = (np.load(out / f"{name}_{part}.npy") for part in ("base", "query", "truth"))
    index = hnswlib.Index("ip", base.shape[1])
    index.init_index(len(base), M=16, ef_construction=100, random_seed=100)
    start = time.time()
    index.add_items(base, num_threads=os.cpu_count() or 1)
    built = time.time() - start
    index.set_ef(ef)
    start = time.time()
    found, _ = index.knn_query(query, 10, num_threads=1)
    rate = len(query) / (time.time() - start)
    reached = exact.recall(list(found), truth)
    fits = abs(reached - RECALL_WANTED) <= RECALL_SLACK
    print(f"hnswlib M 16, ef_construction 100, ef {ef}: recall@10 {reached:.4f}, {rate:,.0f} queries/s, build {built:.0f} s")
    print(f"wanted {RECALL_WANTED} +- {RECALL_SLACK}: {'comparable' if fits else 'NOT comparable'}")
    return fits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="only measure how hard the set in --out is")
    args = parser.parse_args()
    if args.check:
        return 0 if check(args.out, "lsa", 64) else 1
    build(args.out, args.rows, args.queries, args.dim, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
