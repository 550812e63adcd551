"""kill -9 under etcd's door: what clients saw is what one store in one order would have said. In full: bench/versions_kill.py."""

from collections import Counter
from dataclasses import replace

import pytest

from bench.versions_kill import kills
from harness.history import ALL, KV, LOST, Call, Event, History, Response, check


WRONG = []


def wrong(change):
    WRONG.append(change)
    return change


def lived() -> History:
    """A history as it should be: a store of maps that answers one call after the other, every fifth of which loses its answer."""
    history, state, revision = History(), {}, 1
    for turn in range(40):
        key, began = b"k%d" % (turn % 3), float(turn)
        held = state.get(key)
        if turn % 7 == 6 and held:
            revision += 1
            state.pop(key)
            call = Call("delete", began, began + 0.5, deletes=(key, b""), revision=revision, deleted=1, prev=(held,))
            events = (Event(key, revision, None, held),)
        else:
            revision += 1
            names = (key, b"twin") if turn % 4 == 0 else (key,)
            made = {n: KV(n, b"v%d" % turn, *((state[n].create, revision, state[n].version + 1) if n in state else (revision, revision, 1))) for n in names}
            events = tuple(Event(n, revision, kv, state.get(n)) for n, kv in made.items())
            holds = (key, held.mod if held else 0) if turn % 3 == 0 else None
            state.update(made)
            found = tuple(state[name] for name in sorted(state)) if holds else None
            puts = tuple((name, kv.value, 0) for name, kv in made.items())
            call = Call("put", began, began + 0.5, puts=puts, holds=holds, reads=ALL if holds else None, found=found, revision=revision)
        history.watched.append(Response(began + 0.6, events))
        history.calls.append(replace(call, outcome=LOST) if turn % 5 == 4 else call)
        found = tuple(state[name] for name in sorted(state))
        history.calls.append(Call("range", began + 0.7, began + 0.8, reads=ALL, found=found, revision=revision))
        history.last = (revision, found)
    return history


@wrong
def lose_an_acknowledged_write(history):
    history.watched = history.watched[:-2]
    history.last = (history.calls[-5].revision, history.calls[-5].found)


@wrong
def give_a_revision_twice(history):
    at = next(n for n, call in enumerate(history.calls) if n > 20 and call.writes)
    other = next(n for n, call in enumerate(history.calls) if n > at and call.writes)
    history.calls[other] = replace(history.calls[other], revision=history.calls[at].revision)


@wrong
def read_what_is_old(history):
    history.calls[41] = replace(history.calls[41], found=history.calls[39].found, revision=history.calls[39].revision)


@wrong
def answer_with_another_state(history):
    history.calls[41] = replace(history.calls[41], found=history.calls[39].found)


@wrong
def leave_a_revision_out(history):
    del history.watched[10]


@wrong
def watch_a_revision_twice(history):
    history.watched.insert(10, history.watched[10])


@wrong
def split_a_revision(history):
    at, response = next((n, response) for n, response in enumerate(history.watched) if len(response.events) > 1)
    history.watched[at : at + 1] = [replace(response, events=(event,)) for event in response.events]


@wrong
def tell_wrongly_what_was_before(history):
    (event, *others) = history.watched[12].events
    history.watched[12] = replace(history.watched[12], events=(replace(event, prev=replace(event.prev, value=b"another")), *others))


@wrong
def do_half_of_a_lost_write(history):
    at, call = next((n, call) for n, call in enumerate(history.calls) if call.outcome == LOST and call.puts)
    history.calls[at] = replace(call, puts=(*call.puts, (b"other", b"half", 0)))


@wrong
def do_what_nobody_asked_for(history):
    at, call = next((n, call) for n, call in enumerate(history.calls) if call.outcome == LOST and call.puts)
    del history.calls[at]


@wrong
def succeed_though_the_condition_did_not_hold(history):
    at, call = next((n, call) for n, call in enumerate(history.calls) if n > 20 and call.holds and call.writes)
    history.calls[at] = replace(call, holds=(call.holds[0], call.holds[1] + 1))


@wrong
def lower_the_revision_in_the_end(history):
    history.last = (history.last[0] - 1, history.last[1])


def test_a_history_of_one_store_is_right():
    assert check(lived()) == []
    assert Counter(call.outcome for call in lived().calls)[LOST] == 8


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_a_history_that_no_store_has_is_found(change):
    history = lived()
    change(history)
    assert check(history)


def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    run, met, _, peak = kills(tmp_path / "data", "46MiB", 6, 1, limit_s=1.0)
    assert check(run.history) == [] and run.bad == []
    assert peak <= 42 << 20
    assert run.history.watched and any(call.outcome == LOST for call in run.history.calls) and sum(met.values()) >= 6
