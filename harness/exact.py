"""The slow, obvious oracle: exact nearest neighbours by inner product, block by block."""

import numpy as np


def nearest(base: np.ndarray, queries: np.ndarray, k: int, block: int = 20_000) -> np.ndarray:
    """int32 ids of the k rows of `base` with the largest inner product, best first, for every query."""
    best_score = np.full((len(queries), k), -np.inf, np.float32)
    best_id = np.full((len(queries), k), -1, np.int32)
    for at in range(0, len(base), block):
        rows = base[at : at + block]
        for q in range(0, len(queries), 1000):
            part = slice(q, q + 1000)
            scores = queries[part] @ rows.T
            top = np.argpartition(-scores, min(k, len(rows) - 1), axis=1)[:, :k].astype(np.int32)
            score = np.concatenate([best_score[part], np.take_along_axis(scores, top, 1)], 1)
            ids = np.concatenate([best_id[part], top + at], 1)
            order = np.argsort(-score, axis=1, kind="stable")[:, :k]
            best_score[part] = np.take_along_axis(score, order, 1)
            best_id[part] = np.take_along_axis(ids, order, 1)
    return best_id


def recall(found: list, truth: np.ndarray) -> float:
    """Share of the true neighbours that were found; `found` holds one list of ids for each row of `truth`."""
    hits = sum(len(set(map(int, row)) & set(map(int, want))) for row, want in zip(found, truth, strict=True))
    return hits / truth.size
