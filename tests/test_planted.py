"""The list of bugs that are planted for the simulator is up to date: each line to change stands in its file once."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parent.parent / "crates/sim/planted/planted.py"


def load():
    spec = importlib.util.spec_from_file_location("planted", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLANTED = load()


EVERY = PLANTED.BUGS + PLANTED.VERSIONS


@pytest.mark.parametrize("name, file, right, wrong", EVERY, ids=[bug[0] for bug in EVERY])
def test_the_line_to_change_stands_there_once(name, file, right, wrong):
    assert (PLANTED.ROOT / file).read_text().count(right) == 1
    assert right != wrong
