"""ann-benchmarks' .hdf5 to the .npy files that `ramekin lab` and the other scripts here read.

    glove-100-angular.hdf5  ->  glove-100-angular_base.npy   train, float32
                                glove-100-angular_query.npy  test, float32
                                glove-100-angular_truth.npy  neighbors, int32

    pip install -r requirements/hdf5.txt
    python bench/hdf5_to_npy.py glove-100-angular.hdf5 --out .bench
"""

import argparse
import sys
from pathlib import Path

import numpy as np

PARTS = {"base": ("train", "<f4"), "query": ("test", "<f4"), "truth": ("neighbors", "<i4")}
ROWS = 100_000  # converted at a time


def convert(file, out: Path, stem: str) -> list[Path]:
    """Writes each part; an error names what is missing or has another shape."""
    written = []
    for part, (name, kind) in PARTS.items():
        if name not in file:
            raise ValueError(f"no data set '{name}' in it; there are: {', '.join(file)}")
        data = file[name]
        if len(data.shape) != 2:
            raise ValueError(f"'{name}' has shape {data.shape}; two dimensions are wanted (sparse sets are not read)")
        path = out / f"{stem}_{part}.npy"
        array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=data.shape)
        for at in range(0, data.shape[0], ROWS):
            array[at : at + ROWS] = data[at : at + ROWS]
        array.flush()
        written.append(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a file of ann-benchmarks, dense vectors")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the three files")
    args = parser.parse_args()
    try:
        import h5py
    except ImportError:
        sys.exit("h5py is missing: pip install -r requirements/hdf5.txt")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        with h5py.File(args.file, "r") as file:
            metric = file.attrs.get("distance", "unknown")
            for path in convert(file, args.out, args.file.stem):
                print(path)
    except (OSError, ValueError) as error:
        sys.exit(f"{args.file}: {error}")
    print(f"its distance is {metric}; pass --metric {'cosine' if metric == 'angular' else 'euclid'} to ramekin lab")
    return 0


if __name__ == "__main__":
    sys.exit(main())
