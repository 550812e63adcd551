"""What clients of etcd's door saw, and whether one store in one order could have answered so.

    calls     who asked what, when it began and ended, and what was answered: nothing, if the answer was lost
    watched   responses to a watcher of all keys, in their order, over all restarts                    each with when it came
       │
       └► revisions are a total order: the events that were watched make the states ─► each answer is held against the state of its revision

    a write     its revision is its alone, its events are what it asked for, what it says was there before was there
    a read      is the state of its revision                   a condition    held before, or did not hold
    in time     what began after another had ended has a later revision, or the same if it only reads
    lost        a write without an answer is there once, or not at all; a refused one is not there
    watched     in order, no revision twice, left out or split; what was there before is right
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

ALL = (b"\0", b"\0")
DONE, REFUSED, LOST = "done", "refused", "lost"


@dataclass(frozen=True)
class KV:
    """A version of a key."""

    key: bytes
    value: bytes
    create: int
    mod: int
    version: int
    lease: int = 0


@dataclass(frozen=True)
class Event:
    key: bytes
    revision: int
    kv: KV | None  # None: it was deleted
    prev: KV | None


@dataclass(frozen=True)
class Response:
    """What a watcher was sent at once."""

    came: float
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Call:
    """`puts`: key, value and lease of each. `deletes`: a range. `revokes`: a lease. `holds`: a key, and which revision it must have been
    written in (0: it must not be there) for the puts to be done; else only `reads` are."""

    kind: str
    began: float
    ended: float
    outcome: str = DONE
    puts: tuple[tuple[bytes, bytes, int], ...] = ()
    deletes: tuple[bytes, bytes] | None = None
    revokes: int = 0
    holds: tuple[bytes, int] | None = None
    reads: tuple[bytes, bytes] | None = None
    at: int = 0  # the revision that was asked for, or up to which was to be compacted
    why: str = ""  # of what was refused
    # The answer.
    revision: int = 0
    succeeded: bool = True
    deleted: int = 0
    prev: tuple[KV, ...] | None = None
    found: tuple[KV, ...] | None = None

    @property
    def writes(self) -> bool:
        """Whether it was answered as something that has a revision of its own."""
        if self.outcome != DONE:
            return False
        return bool(self.puts and self.succeeded) or bool(self.deletes and self.deleted) or bool(self.revokes and self.deleted)


@dataclass
class History:
    calls: list[Call] = field(default_factory=list)
    watched: list[Response] = field(default_factory=list)
    # Of leases: when each was asked for at the earliest, and its seconds.
    leases: dict[int, tuple[float, float]] = field(default_factory=dict)
    # What a reader finds in the end, and the newest revision then.
    last: tuple[int, tuple[KV, ...]] | None = None


def inside(key: bytes, keys: tuple[bytes, bytes]) -> bool:
    start, end = keys
    if not end:
        return key == start
    return key >= start and (end == b"\0" or key < end)


def chosen(state: dict[bytes, KV], keys: tuple[bytes, bytes]) -> tuple[KV, ...]:
    if not keys[1]:
        return (state[keys[0]],) if keys[0] in state else ()
    return tuple(state[key] for key in sorted(state) if inside(key, keys))


class Checker:
    def __init__(self, history: History):
        self.history, self.faults = history, []
        self.state: dict[bytes, KV] = {}
        # Writes without an answer that were not found so far: by what they put, and the others.
        lost = [call for call in history.calls if call.outcome == LOST]
        self.lost_puts = {put[:2]: call for call in lost for put in call.puts}
        self.lost_others = [call for call in lost if call.deletes or call.revokes]
        self.found: dict[int, int] = {}  # a lost call ─► the revision that it has

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def check(self) -> list[str]:
        by_revision = self.revisions()
        writers: dict[int, Call] = {}
        readers: dict[int, list[Call]] = {}
        for call in self.history.calls:
            if call.outcome != DONE or call.kind == "compact":
                continue
            if call.writes:
                if call.revision in writers:
                    self.fault(f"revision {call.revision} was given twice: {call.kind} and {writers[call.revision].kind}")
                writers[call.revision] = call
                readers.setdefault(call.revision - 1, [])
            if call.found is not None or not call.writes:
                readers.setdefault(call.at or call.revision, []).append(call)
        newest = max(by_revision, default=1)
        for revision in sorted(set(writers) - set(by_revision)):
            self.fault(f"{writers[revision].kind} was acknowledged as revision {revision}, which is gone")
        for call in readers.get(1, []):
            self.read(call, 1)
        for revision in range(2, newest + 1):
            came, events = by_revision.get(revision, (0.0, ()))
            if not events:
                self.fault(f"revision {revision} was not watched, and later ones were")
                continue
            before = dict(self.state)
            self.apply(revision, events)
            self.owned(revision, came, events, writers.get(revision), before)
            for call in readers.get(revision, []):
                self.read(call, revision)
        for revision in sorted(readers):
            if revision > newest and readers[revision]:
                self.fault(f"{readers[revision][0].kind} saw revision {revision}, the newest is {newest}")
        self.in_time()
        self.compacted()
        if self.history.last is not None:
            revision, found = self.history.last
            if revision != newest or found != chosen(self.state, ALL):
                self.fault(f"in the end revision {revision} is another state than what was watched up to {newest}")
        return self.faults

    def revisions(self) -> dict[int, tuple[float, tuple[Event, ...]]]:
        """Events by revision. Within a response, and from one to the next, revisions rise."""
        found: dict[int, tuple[float, tuple[Event, ...]]] = {}
        last = 0
        for response in self.history.watched:
            first = True
            for event in response.events:
                if event.revision < last or (event.revision == last and first):
                    how = "split or sent twice" if event.revision == last else f"after {last}"
                    self.fault(f"revision {event.revision} was watched {how}")
                first = False
                last = max(last, event.revision)
                came, events = found.get(event.revision, (response.came, ()))
                found[event.revision] = (came, (*events, event))
        return found

    def apply(self, revision: int, events: tuple[Event, ...]) -> None:
        for event in events:
            old = self.state.get(event.key)
            if event.prev != old:
                self.fault(f"revision {revision}: before it {event.key!r} was {old}, a watcher was told {event.prev}")
            if event.kv is None:
                if old is None:
                    self.fault(f"revision {revision}: {event.key!r} was deleted, and was not there")
                self.state.pop(event.key, None)
                continue
            made = (old.create, old.version + 1) if old else (revision, 1)
            if (event.kv.create, event.kv.version, event.kv.mod) != (*made, revision):
                self.fault(f"revision {revision}: {event.kv} has wrong numbers, before it was {old}")
            self.state[event.key] = event.kv
        if len({event.key for event in events}) != len(events):
            self.fault(f"revision {revision} changed a key twice")

    def owned(self, revision: int, came: float, events: tuple[Event, ...], call: Call | None, before: dict[bytes, KV]) -> None:
        """Some call wanted just these events."""
        if call is not None:
            if not self.wanted(call, events, before):
                self.fault(f"revision {revision}: {call.kind} was acknowledged, and {len(events)} other events were watched")
            if call.prev is not None:
                keys = {event.key for event in events}
                if call.prev != tuple(before[key] for key in sorted(keys) if key in before):
                    self.fault(f"revision {revision}: {call.kind} was told wrongly what was there before")
            return
        for event in events:
            lost = event.kv and self.lost_puts.get((event.key, event.kv.value))
            if lost:
                return self.attribute(revision, came, events, lost, before)
        for lost in self.lost_others:
            if id(lost) not in self.found and lost.began <= came and self.wanted(lost, events, before):
                return self.attribute(revision, came, events, lost, before)
        self.ended(revision, came, events, before)

    def attribute(self, revision: int, came: float, events: tuple[Event, ...], lost: Call, before: dict[bytes, KV]) -> None:
        if id(lost) in self.found:
            self.fault(f"revision {revision}: {lost.kind} was done as revision {self.found[id(lost)]} before")
        if not self.wanted(lost, events, before):
            self.fault(f"revision {revision}: {lost.kind} got no answer, and was done in part")
        self.found[id(lost)] = revision

    def ended(self, revision: int, came: float, events: tuple[Event, ...], before: dict[bytes, KV]) -> None:
        """The time of a lease was over, or nobody asked for this."""
        leases = {before[event.key].lease for event in events if event.key in before}
        deletes = all(event.kv is None for event in events)
        if not deletes or len(leases) != 1 or 0 in leases:
            self.fault(f"revision {revision}: nobody asked for it: {events[0]}")
            return
        (lease,) = leases
        if {kv.key for kv in before.values() if kv.lease == lease} != {event.key for event in events}:
            self.fault(f"revision {revision}: lease {lease:x} took only a part of its keys along")
        began, seconds = self.history.leases.get(lease, (0.0, 0.0))
        if came < began + seconds:
            self.fault(f"revision {revision}: lease {lease:x} ended after {came - began:.2f} s of {seconds} s")

    def wanted(self, call: Call, events: tuple[Event, ...], before: dict[bytes, KV]) -> bool:
        if call.puts:
            if call.holds is not None:
                held = before.get(call.holds[0])
                if (held.mod if held else 0) != call.holds[1]:
                    return False
            return {(e.key, e.kv.value, e.kv.lease) if e.kv else (e.key,) for e in events} == set(call.puts)
        gone = {event.key for event in events if event.kv is None}
        if call.deletes:
            wanted = {key for key in before if inside(key, call.deletes)}
            counted = call.outcome != DONE or call.deleted == len(gone)
            return gone == wanted and len(gone) == len(events) and counted
        return gone == {kv.key for kv in before.values() if kv.lease == call.revokes} and len(gone) == len(events)

    def read(self, call: Call, revision: int) -> None:
        if call.found is not None and call.reads is not None and call.found != chosen(self.state, call.reads):
            self.fault(f"{call.kind} at revision {revision} found another state than was watched")
        if call.holds is not None and not call.succeeded:
            held = self.state.get(call.holds[0])
            if (held.mod if held else 0) == call.holds[1]:
                self.fault(f"{call.kind} at revision {revision}: its condition held, and it was told that it did not")
        if call.deletes and not call.deleted and chosen(self.state, call.deletes):
            self.fault(f"{call.kind} at revision {revision} deleted nothing, and there was something")

    def in_time(self) -> None:
        """What began after another had ended is not before it."""
        done = sorted((call for call in self.history.calls if call.outcome == DONE and call.revision), key=lambda call: call.ended)
        ends, newest = [call.ended for call in done], []
        for call in done:
            newest.append(max(call.revision, newest[-1] if newest else 0))
        for call in self.history.calls:
            revision = call.revision if call.outcome == DONE else self.found.get(id(call), 0)
            at = bisect_left(ends, call.began)
            if not revision or not at:
                continue
            seen = newest[at - 1]
            if revision < seen or (revision == seen and (call.writes or call.outcome == LOST)):
                self.fault(f"{call.kind} has revision {revision}, and began when {seen} was known")

    def compacted(self) -> None:
        """What is compacted cannot be read, and stays so; everything else can."""
        compactions = [call for call in self.history.calls if call.kind == "compact" and call.outcome != REFUSED]
        for call in self.history.calls:
            if call.kind == "compact" or not call.at:
                continue
            surely = max((c.at for c in compactions if c.outcome == DONE and c.ended < call.began), default=0)
            at_most = max((c.at for c in compactions if c.began < call.ended), default=0)
            if call.outcome == DONE and call.at < surely:
                self.fault(f"{call.kind} read revision {call.at}, and {surely} was compacted")
            if call.outcome == REFUSED and "compacted" in call.why and call.at >= at_most:
                self.fault(f"{call.kind} of revision {call.at} was refused, and only {at_most} was compacted")
            if call.outcome == REFUSED and "future" in call.why:
                self.fault(f"{call.kind} of revision {call.at} was refused, which had been answered before")


def check(history: History) -> list[str]:
    """What is wrong with a history; nothing, if one store could have answered so."""
    return Checker(history).check()


__all__ = ["ALL", "Call", "Event", "History", "KV", "Response", "check", "replace"]
