"""The harder synthetic set: a mixture of 2,000 clusters with a decaying spectrum, unit length.

    48 hidden factors, falling as i^-0.35 --+
    one of 2,000 centres -------------------+--> 100 dimensions --> unit length --> syn_base.npy, syn_query.npy,
    noise ----------------------------------+                                       syn_truth.npy (exact top 10)

Real text has near duplicates and empty regions; this has neither, so every method needs more work here for the same
recall (hnswlib, M 16, ef_construction 100: .938 at ef 64, .971 at ef 128).
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import exact  # noqa: E402

CLUSTERS, FACTORS, NOISE = 2_000, 48, 0.25


def draw(rows: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((FACTORS, dim)).astype(np.float32)
    falling = (np.arange(1, FACTORS + 1) ** -0.35).astype(np.float32)
    hidden = rng.standard_normal((rows, FACTORS)).astype(np.float32) * falling
    centres = rng.standard_normal((CLUSTERS, dim)).astype(np.float32) * 0.35
    drawn = hidden @ mixing / np.sqrt(np.float32(FACTORS))
    drawn += centres[rng.integers(0, CLUSTERS, rows)]
    drawn += np.float32(NOISE) * rng.standard_normal((rows, dim)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    vectors = draw(args.rows + args.queries, args.dim, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / "syn_base.npy", vectors[: args.rows])
    np.save(args.out / "syn_query.npy", vectors[args.rows :])
    np.save(args.out / "syn_truth.npy", exact.nearest(vectors[: args.rows], vectors[args.rows :], 10))


if __name__ == "__main__":
    main()
