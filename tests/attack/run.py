"""A number of attacks against one server in a cgroup, and what must hold meanwhile and afterwards.

    plan(seed) --> attacks: endpoint, fields, way     each is drawn again from seed and number alone
    run()      --> faults: killed, over the budget, a small query without an answer, books that do not balance
                   cells: endpoint x field x way --> how often
"""

import json
import multiprocessing
import os
import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.attack import FULL_KEY, READ_KEY, WAYS, Attacker, Watch, head
from harness.cgroup import MIB
from harness.rest import Answer, Connection
from harness.server import Server, mib
from tests.attack import bodies, surface
from tests.attack.kinds import Spot

POINTS = 2_000
SIDE_BY_SIDE = 4  # fields at most that one body aims at
ALONE = 0.35  # share of the attacks
TIDY_EVERY = 100  # attacks between two times that what they made is dropped
SETTLE_S = 60.0
STOP_S = 30.0  # three times what requests get by default
# What is not an account of requests or data: caches and what the kernel and the allocator were seen to hold.
NOT_COMPARED = ("pages", "allocator", "base")
SLACK = 256 << 10

Cell = tuple[str, str, str]  # endpoint, field, way


class Attack(NamedTuple):
    number: int
    endpoint: surface.Endpoint
    spots: list[Spot]
    way: str
    alone: bool  # it gets all the memory that there is; the others share it

    @property
    def cells(self) -> list[Cell]:
        return [(self.endpoint.name, spot.path, self.way) for spot in self.spots]

    def __str__(self) -> str:
        return f"{self.number}: {'alone, ' if self.alone else ''}{self.way} {self.endpoint.name} {' + '.join(spot.path for spot in self.spots)}"


class Done(NamedTuple):
    number: int
    began: float
    ended: float
    form: str
    bytes: int
    outcome: str


class Result(NamedTuple):
    faults: list[str]
    cells: Counter
    done: list[Done]
    took: list[float]  # of the small query and the ledger
    highest: int
    limited: bool


def deck() -> list[Cell]:
    """Every cell once, in an order that no seed changes, so that runs at several budgets share it out."""
    every = [(*aim, way) for aim in surface.aims() for way in WAYS]
    random.Random(0).shuffle(every)
    return every


def plan(seed: int, count: int, start: int = 0) -> list[Attack]:
    """Attacks at the cells from `start` of the deck on. Each takes what else is missing of its endpoint along."""
    cells, aims = deck(), surface.aims()
    order = cells[start:] + cells[:start]
    missing = dict.fromkeys(order)
    of_endpoint: dict[tuple[str, str], list[str]] = {}
    for endpoint, field, way in order:
        of_endpoint.setdefault((endpoint, way), []).append(field)
    attacks, at = [], 0
    while len(attacks) < count:
        rnd = random.Random(f"{seed}/{len(attacks)}/plan")
        while missing and order[at % len(order)] not in missing:
            at += 1
        name, field, way = order[at % len(order)]
        at += 1
        endpoint, forms = aims[name, field]
        spots = [rnd.choice(forms)]
        for other in of_endpoint[name, way]:
            if len(spots) == SIDE_BY_SIDE or not spots[0].layers:
                break
            if (name, other, way) not in missing or other == field:
                continue
            if fitting := [spot for spot in aims[name, other][1] if fits(spots, spot)]:
                spots.append(rnd.choice(fitting))
        attack = Attack(len(attacks), endpoint, spots, way, rnd.random() < ALONE)
        for cell in attack.cells:
            missing.pop(cell, None)
        attacks.append(attack)
    return attacks


def fits(spots: list[Spot], spot: Spot) -> bool:
    """Whether one more field can stand beside those: all in items of one list, or all below different keys."""
    if len(spots) > 1 and surface.shared_list(*spots[:2]):
        depth = surface.shared_list(*spots[:2])
        return surface.shared_list(spots[0], spot) == depth
    if len(spots) == 1 and surface.shared_list(spots[0], spot):
        return True
    return all(surface.mergeable(one, spot) and not surface.shared_list(one, spot) for one in spots)


def path_of(attack: Attack, rnd: random.Random) -> str:
    """The path with its parts filled in: a part that is aimed at gets a hostile text."""
    aimed = attack.spots[0].path
    long = surface.HEADERS_MAX - 600
    hostile = [b"a" * rnd.randint(200, long), b"%00" * rnd.randint(1, long // 3), b"%ff%fe", b"%2e%2e%2f" * 100, "%C3%A4".encode() * rnd.randint(1, long // 6)]
    if attack.endpoint.access == surface.READ:
        collection = surface.BASE
    elif attack.endpoint.path == surface.C and attack.endpoint.method in ("PUT", "DELETE"):
        collection = f"made-{attack.number % 20}"
    else:
        collection = surface.SCRATCH
    parts = {"{collection_name}": collection, "{id}": "7", "{field_name}": "word"}
    if aimed.startswith("{"):
        parts[aimed] = rnd.choice(hostile).decode()
    path = attack.endpoint.path
    for name, part in parts.items():
        path = path.replace(name, part)
    options = "timeout=2" + rnd.choice(["", "&wait=true", "&wait=false"])
    if aimed == "?":
        options += "&" + rnd.choice(["wait=", "ordering=", "consistency=", "x=", "", "&&&", "timeout=9999999"]) + rnd.choice(hostile).decode()
    return f"{path}?{options}"


class Arena:
    """A server with a collection to read and one to write, and the keys to both."""

    def __init__(self, folder: Path, memory: str):
        self.keys = ("--api-key", FULL_KEY, "--read-only-api-key", READ_KEY)
        self.server = Server(folder, memory, options=self.keys)
        self.memory = memory

    def ask(self, method: str, path: str, body=None, timeout: float = 60.0) -> Answer:
        raw = b"" if body is None else json.dumps(body).encode()
        connection = Connection(self.server.port, timeout=timeout)
        try:
            return connection.send(head(method, path, FULL_KEY, len(raw)) + raw)
        finally:
            connection.close()

    def must(self, method: str, path: str, body=None):
        """Asks until it is done: the server may be busy with what was sent before."""
        for _ in range(30):
            answer = self.ask(method, path, body)
            if answer.status < 300:
                return answer.json().get("result")
            if answer.status != 429:
                break
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.error}")

    def fill(self) -> None:
        rnd = random.Random(5)
        self.must("PUT", f"/collections/{surface.BASE}", {"vectors": {"size": surface.DIM, "distance": "Dot"}})
        words = ["red", "green", "blue", "quick", "brown", "fox", "lazy", "dog", "jumps", "over", "sleeping"]
        for first in range(0, POINTS, 500):
            points = [
                {
                    "id": n,
                    "vector": [round(rnd.uniform(-1, 1), 3) for _ in range(surface.DIM)],
                    "payload": {
                        "word": rnd.choice(words),
                        "count": rnd.randint(0, 100),
                        "text": " ".join(rnd.choices(words, k=25)),
                        "time": f"20{rnd.randint(10, 25)}-0{rnd.randint(1, 9)}-11T00:00:00Z",
                        "place": {"lon": rnd.uniform(-20, 20), "lat": rnd.uniform(-40, 60)},
                        "objects": [{"word": rnd.choice(words), "count": k} for k in range(3)],
                    },
                }
                for n in range(first, first + 500)
            ]
            self.must("PUT", f"/collections/{surface.BASE}/points?wait=true", {"points": points})
        for field, kind in [("word", "keyword"), ("count", "integer")]:
            self.must("PUT", f"/collections/{surface.BASE}/index?wait=true", {"field_name": field, "field_schema": kind})

    def tidy(self) -> None:
        """Drops what attacks have made, and makes the collection that they write anew."""
        for collection in self.must("GET", "/collections")["collections"]:
            if collection["name"] != surface.BASE:
                self.must("DELETE", f"/collections/{collection['name']}")
        self.must("PUT", f"/collections/{surface.SCRATCH}", {"vectors": {"size": surface.DIM, "distance": "Dot"}})
        points = [{"id": n, "vector": [0.5] * surface.DIM, "payload": {"word": "red", "text": "quick brown fox"}} for n in range(100)]
        self.must("PUT", f"/collections/{surface.SCRATCH}/points?wait=true", {"points": points})

    def books(self) -> dict[str, int]:
        accounts = self.must("GET", "/memory")["accounts"]
        return {line["name"]: line["bytes"] for line in accounts if line["name"] not in NOT_COMPARED}

    def settled(self, before: dict[str, int]) -> list[str]:
        """Accounts that do not come back to where they were, when all that attacks made has been dropped."""
        for collection in self.must("GET", "/collections")["collections"]:
            if collection["name"] != surface.BASE:
                self.must("DELETE", f"/collections/{collection['name']}")
        end = time.monotonic() + SETTLE_S
        while True:
            now = self.books()
            more = [f"account {name}: {before.get(name, 0):,} bytes before, {now[name]:,} after" for name in now if now[name] > before.get(name, 0) + SLACK]
            if not more or time.monotonic() > end:
                return more
            time.sleep(0.5)


def body_limit(budget: int) -> int:
    return min(32 * MIB, budget // 4)


def carry_out(attack: Attack, attacker: Attacker, seed: int, budget: int, memory: str) -> Done:
    rnd = random.Random(f"{seed}/{attack.number}")
    endpoint, began = attack.endpoint, time.time()
    key = READ_KEY if (endpoint.access == surface.READ) == (rnd.random() < 0.9) else FULL_KEY
    loud = getattr(endpoint.body, "loud", b"") if attack.way == "unread" else b""
    body = bodies.draw(attack.spots, rnd, body_limit(budget), loud)
    text = body.text.replace(b"BUDGET", memory.encode()) if endpoint.path == "/memory" else body.text
    outcome = attacker.send(attack.way, rnd, endpoint.method, path_of(attack, rnd), key, text)
    return Done(attack.number, began, time.time(), body.form, len(text), outcome)


class Crowd:
    """Lets so many attack at a time, or one alone."""

    def __init__(self, context, many: int):
        self.many, self.line, self.places = many, context.Lock(), context.Semaphore(many)

    @contextmanager
    def entered(self, alone: bool):
        taken = self.many if alone else 1
        with self.line:  # who waits to be alone is passed by nobody
            for _ in range(taken):
                self.places.acquire()
        try:
            yield
        finally:
            for _ in range(taken):
                self.places.release()


def attackers(arena: Arena, attacks: list[Attack], seed: int, threads: int, crowd: Crowd, stop, pipe) -> None:
    """One process of attackers: each thread takes every so manieth attack."""
    os.nice(5)  # the server and who watches it go first: it is the server's time that is asked
    done: list[Done] = []

    def work(mine: list[Attack]) -> None:
        attacker = Attacker(arena.server.port, stop)
        try:
            for attack in mine:
                if stop.is_set():
                    return
                if attack.number % TIDY_EVERY == TIDY_EVERY - 1:
                    try:
                        arena.tidy()
                    except (OSError, RuntimeError):
                        pass  # the watch sees a server that does not answer
                with crowd.entered(attack.alone):
                    done.append(carry_out(attack, attacker, seed, arena.server.budget, arena.memory))
        finally:
            attacker.close()

    workers = [threading.Thread(target=work, args=(attacks[n::threads],)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pipe.send(done)
    pipe.close()


def run(folder: Path, memory: str, attacks: list[Attack], seed: int, within_s: float | None, processes: int = 2, threads: int = 3) -> Result:
    arena = Arena(folder, memory)
    server = arena.server.start()
    try:
        return attacked(arena, server, attacks, seed, within_s, processes, threads)
    finally:
        server.close()


def under_way(attacks: list[Attack], done: list[Done], when: float) -> str:
    """The attacks of that moment and shortly before, a line each."""
    names = {attack.number: str(attack) for attack in attacks}
    return "".join(f"\n    {names[d.number]} [{d.form}, {d.bytes:,} bytes]: {d.outcome}" for d in done if d.began < when and d.ended > when - 3)


def attacked(arena: Arena, server: Server, attacks: list[Attack], seed: int, within_s: float | None, processes: int, threads: int) -> Result:
    arena.fill()
    before = arena.books()
    arena.tidy()
    context = multiprocessing.get_context("fork")
    stop, crowd = context.Event(), Crowd(context, processes * threads)
    pipes, workers = [], []
    for n in range(processes):
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=attackers, args=(arena, attacks[n::processes], seed, threads, crowd, stop, send), daemon=True)
        worker.start()
        send.close()
        pipes.append(receive)
        workers.append(worker)
    watch = Watch(server, f"/collections/{surface.BASE}", {"query": [0.5] * surface.DIM, "limit": 3}, within_s)
    died = None
    while any(worker.is_alive() for worker in workers) and not all(pipe.poll() for pipe in pipes):
        if died is None and not server.alive():
            died = time.time()
            stop.set()
        time.sleep(0.1)
    done = sorted(item for pipe in pipes for item in pipe.recv())
    for worker in workers:
        worker.join()
    faults = watch.end()
    if died is None and server.alive():
        try:
            faults += arena.settled(before)
        except (OSError, RuntimeError) as error:
            faults.append(f"afterwards: {error}")
    if not server.alive():
        died = died or time.time()
        faults.insert(0, f"the server ended with {server.process.returncode} during{under_way(attacks, done, died)}\n{server.log_tail(5)}")
    if server.cgroup is not None and server.cgroup.kills():
        faults.insert(0, f"killed for memory {server.cgroup.kills()} times")
    highest = server.peak() if server.cgroup is not None or server.alive() else 0
    if highest > server.budget:
        seen = under_way(attacks, done, watch.highest_at)
        faults.append(f"the charge was {mib(highest)} of {arena.memory}; {mib(watch.highest)} were seen during{seen}")
    if server.alive():
        try:
            server.stop(STOP_S)
        except subprocess.TimeoutExpired:
            faults.append(f"SIGTERM did not end it within {STOP_S:.0f} s")
    finished = {d.number for d in done}
    cells = Counter(cell for attack in attacks if attack.number in finished for cell in attack.cells)
    return Result(faults, cells, done, watch.took, highest, server.cgroup is not None)
