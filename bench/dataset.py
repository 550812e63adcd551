"""The data of a run: base vectors, held-out queries, their exact neighbours.

    full     lsa_*.npy or syn_*.npy in the data folder, made by make_text_vectors.py and make_synthetic.py
    --small  a synthetic set drawn on the spot, so that `make check` needs no files
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import make_synthetic
from harness import exact

K = 10
SMALL_ROWS, SMALL_QUERIES = 30_000, 500


@dataclass
class Dataset:
    name: str
    base: np.ndarray
    query: np.ndarray
    truth: np.ndarray

    @property
    def dim(self) -> int:
        return self.base.shape[1]


def arguments(parser: argparse.ArgumentParser, name: str = "lsa") -> None:
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("BENCH_DIR", ".bench")), help="folder of the data sets and of scratch files"
    )
    parser.add_argument("--set", default=name, choices=["lsa", "syn"], help="which vectors")
    parser.add_argument("--rows", type=int, help="only the first so many vectors")
    parser.add_argument("--queries", type=int, help="only the first so many queries")
    parser.add_argument("--small", action="store_true", help="a minute at most, on data drawn on the spot; speed goals are not checked")
    parser.add_argument("--json", type=Path, help="write the figures here as well")


def read(args: argparse.Namespace) -> Dataset:
    if args.small:
        rows, queries = args.rows or SMALL_ROWS, args.queries or SMALL_QUERIES
        drawn = make_synthetic.draw(rows + queries, 100, 0)
        base, query = drawn[:rows], drawn[rows:]
        return Dataset("drawn", base, query, exact.nearest(base, query, K))
    files = [args.data / f"{args.set}_{part}.npy" for part in ("base", "query", "truth")]
    if not all(file.exists() for file in files):
        maker = {"lsa": "make_text_vectors.py", "syn": "make_synthetic.py"}[args.set]
        sys.exit(f"no {args.set} vectors in {args.data}; make them with: python bench/{maker} --out {args.data}")
    base, query, truth = np.load(files[0], mmap_mode="r"), np.load(files[1]), np.load(files[2])
    query, truth = query[: args.queries], truth[: args.queries]
    if args.rows and args.rows < len(base):
        base = np.asarray(base[: args.rows])
        truth = exact.nearest(base, query, K)
    return Dataset(args.set, base, query, truth)
