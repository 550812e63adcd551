"""The demo's reader of source trees, on files made for it; no server."""

from pathlib import Path

import numpy as np

from demo.embed import Embedder, words_of
from demo.harvest import harvest, python_blocks, slash_blocks, snippets_of

RUST = '''
/// Runs the closure on a thread where blocking is acceptable, so that the executor is not
/// held up. The task cannot be cancelled once it has started to run.
///
/// ```
/// let answer = spawn_blocking(|| 42).await;
/// ```
#[track_caller]
pub fn spawn_blocking<F>(work: F) {}

// Licensed under the Apache License, Version 2.0, so this block must not be found by anybody.
'''

PYTHON = '''
def shorten(text, width):
    """Collapse and truncate the given text to fit in the given width.

    >>> shorten("Hello  world!", width=12)

    If it does not fit, enough words are dropped from the end so that the remaining words fit.
    """
'''


def texts(blocks, overlap=False):
    return [(s.line, s.item, s.text) for s in snippets_of(blocks, "x", overlap)]


def test_rust_comments_know_their_item():
    ((line, item, text),) = texts(slash_blocks(RUST))
    assert (line, item) == (2, "pub fn spawn_blocking")
    assert text.startswith("Runs the closure") and text.endswith("started to run.") and "42" not in text


def test_links_stay_as_text_and_their_targets_go():
    comment = "/// The hashing algorithm can be replaced on a per-map basis using the\n/// [`with_hasher`] method.\n///\n/// [`with_hasher`]: Self::with_hasher\nfn x() {}"
    ((_, _, text),) = texts(slash_blocks(comment))
    assert text == "The hashing algorithm can be replaced on a per-map basis using the with_hasher method."


def test_docstrings_know_their_function_and_leave_doctests_out():
    found = texts(python_blocks(PYTHON))
    assert found[0][:2] == (3, "def shorten")
    assert all(">>>" not in text and "Hello" not in text for _, _, text in found)
    assert any("words are dropped" in text for _, _, text in found)


def test_overlap_opens_a_window_at_each_sentence():
    block = "\n".join("// This is sentence %s of a comment that goes on for quite a while here." % w for w in ("one", "two", "three"))
    assert len(texts(slash_blocks(block), overlap=True)) > len(texts(slash_blocks(block), overlap=False))


def test_a_tree_is_read_in_order_and_without_repetition(tmp_path: Path):
    (tmp_path / "b").mkdir()
    for name in ("a.rs", "b/c.rs"):
        (tmp_path / name).write_text(RUST)
    found = list(harvest([tmp_path]))
    assert [s.file for s in found] == ["a.rs"]
    assert found == list(harvest([tmp_path]))


def test_words():
    assert words_of("HashMap spawn_blocking") == ["hash", "map", "spawn", "block"]
    assert words_of("stopped stopping stops") == ["stop"] * 3


def test_near_texts_have_near_vectors():
    subjects = {"lock": "mutex guard thread lock poison wait", "parse": "argument flag option parse command line"}
    rng = np.random.default_rng(0)
    made = [(name, " ".join(rng.choice(words.split(), 5))) for name, words in subjects.items() for _ in range(40)]
    embedder = Embedder(4, texts_min=1)
    vectors = embedder.fit_embed([text for _, text in made])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    question = embedder.embed(["Which thread holds the mutex?"])[0]
    best = np.argsort(-(vectors @ question))[:10]
    assert {made[i][0] for i in best} == {"lock"}
    assert not embedder.embed(["zzzz"]).any()
