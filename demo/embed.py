"""Latent semantic analysis: short texts to unit vectors, with scikit-learn and no model to download.

    text --> words, item names split --> TF-IDF, sparse --> truncated SVD --> factors evened out --> unit vectors

Two texts are near when their words keep the same company, not only when they share them. A query is embedded by the
same fitted steps, so a collection and its questions must use one and the same `Embedder`.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

BATCH = 50_000
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
ENDINGS = ("ations", "ation", "ings", "ing", "edly", "ers", "ies", "ed", "er", "es", "ly", "s", "e")


def words_of(text: str) -> list[str]:
    """`HashMap` and `spawn_blocking` count as two words each; endings are cut so that sorts, sorted, sorting agree."""
    found = []
    for part in PART.findall(text):
        word = part.lower()
        if len(word) < 2 or word in ENGLISH_STOP_WORDS:
            continue
        for ending in ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= 3:
                word = word[: -len(ending)]
                break
        if len(word) >= 5 and word[-1] == word[-2]:
            word = word[:-1]  # stopped, stopping --> stop
        found.append(word)
    return found


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 1e-6)


class Embedder:
    """`evenness` 0 leaves the factors as strong as they are in the texts, so a few broad subjects decide; 1 makes all
    equally strong, which tells narrow subjects apart and finds better answers to questions."""

    def __init__(self, dim: int, vocabulary: int = 60_000, seed: int = 0, texts_min: int = 3, evenness: float = 0.0):
        self.evenness = evenness
        self.counts = TfidfVectorizer(
            analyzer=words_of, max_features=vocabulary, min_df=texts_min, sublinear_tf=True, dtype=np.float32
        )
        self.svd = TruncatedSVD(dim, algorithm="randomized", n_iter=4, random_state=seed)

    def fit(self, texts: Iterable[str]) -> "Embedder":
        self.svd.fit(self.counts.fit_transform(texts))
        return self

    def fit_embed(self, texts: list[str]) -> np.ndarray:
        """Fits on the texts and embeds them, reading their words once."""
        return self._even(self.svd.fit_transform(self.counts.fit_transform(texts)))

    def batches(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Unit rows; a text without a known word becomes a row of zeros."""
        for at in range(0, len(texts), BATCH):
            yield self._even(self.svd.transform(self.counts.transform(texts[at : at + BATCH])))

    def _even(self, rows: np.ndarray) -> np.ndarray:
        return unit(rows * self.svd.singular_values_**-self.evenness)

    def embed(self, texts: list[str]) -> np.ndarray:
        return np.concatenate(list(self.batches(texts)))
