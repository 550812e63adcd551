"""Batches of operations and kill -9: an operation is there as a whole or not at all, after those before it; a refused one never."""

import os
import random
import re
import threading
import time
from collections import Counter

import pytest

from harness.rest import Connection
from harness.server import Server
from harness.small_disk import fill_to_the_last_byte, small_disk

DIM = 64
NAME = "batches"
WRITERS = 4
IDS = 400
KILLS = int(os.environ.get("KILLS", "3"))
SEED = int(os.environ.get("SEED", "1"))


def vector(tag):
    return [float(tag % 97 + at) for at in range(DIM)]


class Drawing:
    """Draws operations for the points that a state has; each changes the state as the server should."""

    def __init__(self, ids, seed, text_bytes):
        self.ids, self.rnd, self.text_bytes, self.turn = ids, random.Random(seed), text_bytes, 0

    def payload(self):
        return {"turn": self.turn, "text": "x" * self.rnd.randrange(self.text_bytes)}

    def some(self, most):
        return self.rnd.sample(self.ids, self.rnd.randrange(1, most))

    def upsert(self, state):
        points = [{"id": i, "vector": vector(self.turn), "payload": self.payload()} for i in self.some(60)]
        mode = self.rnd.choice(["upsert"] * 6 + ["insert_only", "update_only"])
        passes = {"upsert": lambda i: True, "insert_only": lambda i: i not in state, "update_only": lambda i: i in state}[mode]
        state.update({p["id"]: (p["vector"], p["payload"]) for p in points if passes(p["id"])})
        return {"points": points} | ({} if mode == "upsert" else {"update_mode": mode})

    def delete(self, state):
        ids = self.some(40)
        if self.rnd.random() < 0.5:
            [state.pop(i, None) for i in ids]
            return {"points": ids}
        below = self.rnd.randrange(self.turn + 1)
        [state.pop(i) for i in ids if state.get(i, (0, {}))[1].get("turn", self.turn) < below]
        return {"filter": {"must": [{"has_id": ids}, {"key": "turn", "range": {"lt": below}}]}}

    def there(self, state):
        ids = sorted(state)
        return self.rnd.sample(ids, min(len(ids), self.rnd.randrange(1, 60)))

    def set_payload(self, state):
        ids, new = self.there(state), {"set": self.turn, "more": "y" * self.rnd.randrange(self.text_bytes)}
        state.update({i: (state[i][0], state[i][1] | new) for i in ids})
        return {"payload": new, "points": ids}

    def overwrite_payload(self, state):
        ids, new = self.there(state), self.payload()
        state.update({i: (state[i][0], new) for i in ids})
        return {"payload": new, "points": ids}

    def delete_payload(self, state):
        ids = self.there(state)
        state.update({i: (state[i][0], {k: v for k, v in state[i][1].items() if k != "more"}) for i in ids})
        return {"keys": ["more"], "points": ids}

    def clear_payload(self, state):
        ids = self.there(state)[:5]
        state.update({i: (state[i][0], {}) for i in ids})
        return {"points": ids}

    def update_vectors(self, state):
        ids = self.there(state)
        state.update({i: (vector(self.turn), state[i][1]) for i in ids})
        return {"points": [{"id": i, "vector": vector(self.turn)} for i in ids]}

    KINDS = ["upsert"] * 4 + ["delete", "set_payload", "set_payload", "overwrite_payload", "delete_payload", "clear_payload", "update_vectors"]

    def batch(self, state):
        """The body of a batch, and the states before it and after each of its operations."""
        operations, states = [], [state]
        for _ in range(self.rnd.randrange(1, 8)):
            self.turn += 1
            state = dict(state)
            kind = self.rnd.choice(self.KINDS) if state else "upsert"
            body = getattr(self, kind)(state)
            if body.get("points") != []:
                operations.append({kind: body})
                states.append(state)
        return {"operations": operations}, states


class Writer:
    """Sends batches for points of its own, one at a time, and knows what may be stored."""

    def __init__(self, number, seed, text_bytes):
        self.ids = range(number * IDS, (number + 1) * IDS)
        self.drawing = Drawing(self.ids, seed, text_bytes)
        self.allowed = [{}]
        self.answers = Counter()
        self.wrong = []

    def run(self, port):
        connection = Connection(port)
        try:
            while not self.wrong:
                self.step(connection)
        except OSError:
            pass  # the kill
        finally:
            connection.close()

    def step(self, connection):
        body, states = self.drawing.batch(self.allowed[0])
        rnd = self.drawing.rnd
        self.allowed = states
        wait, timeout = rnd.choice(["true", "false"]), rnd.choice([1, 30])
        answer = connection.ask("POST", f"/collections/{NAME}/points/batch?wait={wait}&timeout={timeout}", body)
        self.answers[answer.status] += 1
        if answer.status == 200:
            self.allowed = states[-1:]
            return
        done = re.match(r"(\d+) operations? of the batch w", answer.error or "")
        if answer.status not in (429, 507) and not (answer.status == 503 and done):
            self.wrong.append(f"{answer.status} {answer.error}")
        # What was refused was not done; where a part was, it is said which.
        self.allowed = [states[int(done[1]) if done else 0]]
        self.settle(read(connection, self.ids), "after a refusal")

    def settle(self, stored, when):
        mine = {i: stored[i] for i in self.ids if i in stored}
        if mine not in self.allowed:
            self.wrong.append(f"{when}: {[difference(state, mine) for state in self.allowed]}")
        self.allowed = [mine]


def difference(wanted, found):
    ids = [i for i in {**wanted, **found} if wanted.get(i) != found.get(i)]
    say = lambda state, i: state.get(i) and (state[i][0][0], {k: v if k != "text" and k != "more" else len(v) for k, v in state[i][1].items()})
    return f"{len(ids)} differ: " + "; ".join(f"{i}: {say(wanted, i)} / {say(found, i)}" for i in ids[:3])


def read(connection, ids):
    """What is stored of these ids, with all that belongs to it."""
    found = {}
    for at in range(0, len(ids), 50):
        body = {"ids": list(ids[at : at + 50]), "with_payload": True, "with_vector": True}
        points = connection.must("POST", f"/collections/{NAME}/points", body)
        found.update({p["id"]: (p["vector"], p["payload"] or {}) for p in points})
    return found


class Kills:
    """A server that is killed again and again while all write; after each start what is there must be what may be there."""

    def __init__(self, server, text_bytes):
        self.server, self.rnd = server, random.Random(SEED)
        self.writers = [Writer(number, SEED * 100 + number, text_bytes) for number in range(WRITERS)]
        Connection(server.port).must("PUT", f"/collections/{NAME}", {"vectors": {"size": DIM, "distance": "Dot"}})

    def kill(self, when, until="/readyz"):
        threads = [threading.Thread(target=writer.run, args=(self.server.port,)) for writer in self.writers]
        [thread.start() for thread in threads]
        time.sleep(self.rnd.uniform(0.2, 2))
        self.server.kill9()
        [thread.join() for thread in threads]
        self.server.start(until=until)
        stored = read(Connection(self.server.port), range(WRITERS * IDS))
        [writer.settle(stored, when) for writer in self.writers]
        print(when, dict(self.answers()), len(stored), "points")
        for writer in self.writers:
            assert not writer.wrong, "\n".join(writer.wrong)

    def answers(self):
        return sum((writer.answers for writer in self.writers), Counter())


@pytest.mark.parametrize(("memory", "text_bytes"), [("48MiB", 3_000), ("32MiB", 12_000)])
def test_operations_of_batches_are_whole_after_a_kill(tmp_path, memory, text_bytes):
    server = Server(tmp_path / "data", memory).start()
    try:
        kills = Kills(server, text_bytes)
        for number in range(KILLS):
            kills.kill(f"after kill {number}")
        assert kills.answers()[200] > 0
    finally:
        server.close()


def test_operations_that_a_full_disk_refuses_are_not_there_after_a_kill(tmp_path):
    with small_disk(tmp_path, "ext4") as folder:
        server = Server(folder / "data", "32MiB", log=tmp_path / "log").start()
        try:
            kills = Kills(server, 3_000)
            for number in range(KILLS):
                kills.kill(f"after kill {number}, with room")
                fill_to_the_last_byte(folder)
                kills.kill(f"after kill {number}, without", until="/livez")
                (folder / "junk").unlink()
            assert kills.answers()[507] > 0
        finally:
            server.close()
