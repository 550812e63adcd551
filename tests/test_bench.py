"""The instruments themselves: a bench that cannot see a fault would call everything well."""

import argparse
import json

import numpy as np
import pytest

from bench import client, dataset, make_synthetic
from bench.kill9 import DELETED, Writer, compare
from bench.moving import Searching
from bench.report import Report, spread
from bench.speed import Row, every, over
from harness import exact
from harness.cgroup import MIB, margin
from harness.rest import points_body


@pytest.fixture
def writer():
    made = Writer(0, 10, np.zeros((300, 4), np.float32), 1)
    made.known[:] = [5, 5, DELETED, DELETED, -1, 5, 5, 5, 5, 5]
    made.open = {5: {6}, 6: {DELETED}, 3: {7}}
    return made


def stored(**changes):
    state = np.array([5, 5, -1, -1, -1, 5, 5, 5, 5, 5])
    for at, value in changes.items():
        state[int(at[1:])] = value
    return state


@pytest.mark.parametrize(
    ("state", "lost", "back"),
    [
        (stored(), 0, 0),
        (stored(_5=6, _6=-1, _3=7), 0, 0),  # what was in flight may have happened
        (stored(_0=4), 1, 0),  # an older version
        (stored(_0=-1), 1, 0),  # gone
        (stored(_0=6), 1, 0),  # a version that nobody wrote
        (stored(_2=5), 0, 1),  # a deleted point is back
        (stored(_5=-1), 1, 0),  # in flight was another upsert, not a delete
        (stored(_4=1), 1, 0),  # a point that was never written
    ],
)
def test_kill9_sees_each_fault(writer, state, lost, back):
    assert compare([writer], state) == (lost, back)


def test_kill9_takes_what_is_stored_as_the_truth_afterwards(writer):
    compare([writer], stored(_5=6, _6=-1))
    assert writer.open == {}
    assert compare([writer], stored(_5=6, _6=-1)) == (0, 0)
    assert compare([writer], stored(_6=-1)) == (1, 0)


def test_the_oracle_against_a_plain_sort():
    rng = np.random.default_rng(3)
    base, queries = rng.standard_normal((700, 9)).astype(np.float32), rng.standard_normal((40, 9)).astype(np.float32)
    plain = np.argsort(-(queries @ base.T), axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(exact.nearest(base, queries, 10, block=64), plain)
    assert exact.recall(list(plain), plain) == 1.0
    assert exact.recall([row[:9] for row in plain], plain) == 0.9


def test_the_margin_of_the_contract():
    assert margin(64 * MIB) == 8 * MIB
    assert margin(256 * MIB) == 16 * MIB


def test_bodies_hold_every_bit_of_a_float():
    vectors = np.random.default_rng(4).standard_normal((50, 8)).astype(np.float32)
    body = json.loads(points_body(7, vectors, [{"n": 1}] * 50))["batch"]
    assert body["ids"] == list(range(7, 57)) and len(body["payloads"]) == 50
    np.testing.assert_array_equal(np.float32(body["vectors"]), vectors)


def test_a_missed_goal_fails_the_run(capsys):
    def report(small, ok, speed):
        made = Report("t", argparse.Namespace(small=small, json=None))
        made.row("a", "1", ">= 2", ok, speed=speed)
        return made.end()

    assert report(False, True, False) == 0
    assert report(False, False, False) == 1
    assert report(False, np.float32(3) < 2, False) == 1
    assert report(True, False, True) == 0  # a goal of speed, in a small run
    assert report(True, False, False) == 1


def test_spread():
    assert spread([3, 1, 2]) == "2 (1 to 3)"
    assert spread([1.5], 2) == "1.50"


def test_drawn_vectors_are_unit_and_repeatable():
    one, two = make_synthetic.draw(200, 100, 0), make_synthetic.draw(200, 100, 0)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-5)
    assert dataset.K == 10


def test_an_upload_that_is_prepared_sends_each_row_once():
    base = np.random.default_rng(5).standard_normal((25, 4)).astype(np.float32)
    bodies = [json.loads(raw.split(b"\r\n\r\n", 1)[1])["batch"] for raw in client.prepare_upload(base, 10)]
    assert sum((body["ids"] for body in bodies), []) == list(range(25))
    np.testing.assert_array_equal(np.float32(sum((body["vectors"] for body in bodies), [])), base)


def test_a_rate_is_of_whole_seconds_of_one_budget():
    searching = Searching.__new__(Searching)
    searching.error = ""
    searching.seen = {"began": 100.0, "each_second": [5, 6, 7, 8, 1], "slowest_ms": [1, 2, 9, 3, 50], "statuses": {"200": 27}}
    assert searching.between(100.5, 104.2) == ([6, 7, 8], 9)
    assert searching.between(101.2, 101.9) == ([], 0)
    assert searching.failed() == ""
    searching.seen["statuses"]["429"] = 2
    assert searching.failed() == "2 x 429"


class FakeLab:
    """Answers as `lab minram --json` does: recall rises with ef, and a budget may be too small to start."""

    def __init__(self, starts=True):
        self.starts, self.efs = starts, []

    def run(self, *options):
        self.efs.append(int(options[options.index("--ef") + 1]) if "--ef" in options else None)
        rate, recall = {"median": 100.0}, {"median": 0.90 + (self.efs[-1] or 60) / 2000}
        figures = {"requests_per_second": rate, "recall": recall, "peak_bytes": {"median": 2 * MIB}, "p50_ms": rate, "p99_ms": rate}
        served = {"failed": [], "not_green": [], "refused": 0, **figures}
        killed = {"failed": ["killed"], "not_green": [], "refused": 0, **dict.fromkeys(figures)}
        return {"limits": [served if self.starts else killed], "disk": None}


def test_the_table_of_speed_raises_ef_until_the_recall_is_reached_and_stays_there():
    row = Row("r", FakeLab(), "8MiB", recall_wanted=0.95, efs=[None, 80, 100, 120])
    row.measure(small=True)
    row.measure(small=True)
    assert row.lab.efs == [None, 80, 100, 100] and row.rates == [100.0, 100.0]
    assert over([4, 6], [2, 3]) == [2, 2]


@pytest.mark.parametrize(("starts", "memory", "missed"), [(True, "8MiB", []), (True, "1MiB", ["highest charge"]), (False, "8MiB", ["every query"])])
def test_the_table_of_speed_sees_what_is_killed_or_too_large(starts, memory, missed):
    row = Row("r", FakeLab(starts), memory, efs=[120])
    row.measure(small=True)
    report = Report("t", argparse.Namespace(small=True, json=None))
    every(row, report, 1)
    wrong = [r["what"] for r in report.rows if r["ok"] is False]
    assert len(wrong) == len(missed) and all(part in what for part, what in zip(missed, wrong, strict=True))
