"""kill -9 and pauses under etcd's door; what clients saw must be what one store in one order says, over all restarts.

    6 clients: puts, deletes, conditions, transactions, reads of now and of then, leases, compactions      a watcher of all keys, which resumes
         |                                                                                                        |
         v  SIGSTOP now and then; wait for the moment ---> kill -9 ---> start ---> clients go on           harness/history.py checks it all

    puts       at any time            compact, bulk, defragment   shortly after one was asked for
    files      a run file has come    lease                       about when the time of a lease is over
"""

import argparse
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc  # noqa: E402

from bench import dataset  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness.etcd import Client  # noqa: E402
from harness.history import ALL, DONE, KV, LOST, REFUSED, Call, Event, History, Response, check  # noqa: E402
from harness.server import Server, StartError, free_port, mib  # noqa: E402

MOMENTS = ["puts", "files", "compact", "bulk", "lease", "defragment"]
CLIENTS = 6
KEYS = [b"k%02d" % n for n in range(24)]
MANY = (b"many/", b"many0")
REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.NOT_FOUND)


def brief(value: bytes) -> bytes:
    """A value without its tail of dots, of which only the number is kept."""
    return value.rstrip(b".") + b"#%d" % len(value)


def kv_of(kv) -> KV:
    return KV(kv.key, brief(kv.value), kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def event_of(event) -> Event:
    prev = kv_of(event.prev_kv) if event.HasField("prev_kv") else None
    return Event(event.kv.key, event.kv.mod_revision, None if event.type else kv_of(event.kv), prev)


class Run:
    """A history as it grows, and what clients know of each other."""

    def __init__(self, seed: int):
        self.rnd = random.Random(seed)
        self.history = History()
        self.known: dict[bytes, int] = {}  # the revision in which a key was last seen written
        self.newest = 1
        self.leases: list[tuple[int, float]] = []  # and about when their time is over
        self.asked: Counter = Counter()  # of what a moment waits for
        self.bad: list[str] = []

    def saw(self, revision: int) -> None:
        self.newest = max(self.newest, revision)


class Worker:
    """A client that asks one thing after the other until its connection breaks."""

    def __init__(self, run: Run, number: int, seed: int):
        self.run, self.name, self.rnd, self.turn = run, b"%d" % number, random.Random(seed), 0

    def work(self, port: int, stop: threading.Event) -> None:
        try:
            client = Client(port)
        except grpc.FutureTimeoutError:
            return
        try:
            while not stop.is_set() and self.step(client):
                pass
        finally:
            client.close()

    def value(self, most: int = 3000) -> bytes:
        self.turn += 1
        return b"%s-%d" % (self.name, self.turn) + b"." * (self.rnd.randrange(most) if self.rnd.random() < 0.6 else 0)

    def ask(self, client: Client, call: Call, ask, answered=None) -> bool:
        """False: the connection is broken."""
        call = replace(call, began=time.monotonic())
        try:
            answer = ask()
            call = replace(call, ended=time.monotonic(), revision=answer.header.revision)
            call = answered(call, answer) if answered else call
            self.run.saw(call.revision)
        except grpc.RpcError as error:
            outcome = REFUSED if error.code() in REFUSALS else LOST
            call = replace(call, ended=time.monotonic(), outcome=outcome, why=error.details() or "")
            if error.code() not in (*REFUSALS, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
                self.run.bad.append(f"{call.kind}: {error.code()} {error.details()}")
        self.run.history.calls.append(call)
        return call.outcome != LOST

    def step(self, client: Client) -> bool:
        steps = [(self.put, 40), (self.delete, 8), (self.condition, 20), (self.several, 8), (self.range, 6), (self.old, 6)]
        steps += [(self.get, 10), (self.grant, 2), (self.revoke, 1), (self.compact, 1), (self.fill, 2), (self.bulk, 1), (self.defragment, 0.3)]
        (step,) = self.rnd.choices([step for step, _ in steps], [weight for _, weight in steps])
        return step(client)

    def put(self, client: Client) -> bool:
        key, value, lease = self.rnd.choice(KEYS), self.value(), 0
        if self.run.leases and self.rnd.random() < 0.15:
            lease = self.run.leases[-1][0]
        call = Call("put", 0, 0, puts=((key, brief(value), lease),))

        def answered(call, answer):
            self.run.known[key] = answer.header.revision
            return replace(call, prev=(kv_of(answer.prev_kv),) if answer.HasField("prev_kv") else ())

        return self.ask(client, call, lambda: client.put(key, value, lease=lease, prev_kv=True), answered)

    def delete(self, client: Client) -> bool:
        key = self.rnd.choice(KEYS)

        def answered(call, answer):
            return replace(call, deleted=answer.deleted, prev=tuple(map(kv_of, answer.prev_kvs)) if answer.deleted else None)

        return self.ask(client, Call("delete", 0, 0, deletes=(key, b"")), lambda: client.delete(key, prev_kv=True), answered)

    def condition(self, client: Client) -> bool:
        key, value = self.rnd.choice(KEYS), self.value(200)
        known = self.run.known.get(key, 0) if self.rnd.random() < 0.8 else 0
        holds = client.pb.Compare(key=key, target="MOD", result="EQUAL", mod_revision=known)
        read = client.range_op(*ALL)
        call = Call("condition", 0, 0, puts=((key, brief(value), 0),), holds=(key, known), reads=ALL)

        def answered(call, answer):
            found = tuple(map(kv_of, answer.responses[-1].response_range.kvs))
            self.run.known.update((kv.key, kv.mod) for kv in found if kv.key == key)
            return replace(call, succeeded=answer.succeeded, found=found)

        return self.ask(client, call, lambda: client.txn([holds], [client.put_op(key, value), read], [read]), answered)

    def several(self, client: Client) -> bool:
        keys = self.rnd.sample(KEYS, 3)
        puts = [(key, self.value(500)) for key in keys]
        call = Call("several", 0, 0, puts=tuple((key, brief(value), 0) for key, value in puts))
        return self.ask(client, call, lambda: client.txn(success=[client.put_op(*put) for put in puts]))

    def found(self, call: Call, answer) -> Call:
        return replace(call, found=tuple(map(kv_of, answer.kvs)))

    def range(self, client: Client) -> bool:
        return self.ask(client, Call("range", 0, 0, reads=ALL), lambda: client.range(*ALL), self.found)

    def get(self, client: Client) -> bool:
        key = self.rnd.choice(KEYS)
        return self.ask(client, Call("get", 0, 0, reads=(key, b"")), lambda: client.range(key), self.found)

    def old(self, client: Client) -> bool:
        at = max(1, self.run.newest - self.rnd.randrange(400))
        return self.ask(client, Call("old", 0, 0, reads=ALL, at=at), lambda: client.range(*ALL, revision=at), self.found)

    def grant(self, client: Client) -> bool:
        id, began = self.rnd.randrange(1, 1 << 62), time.monotonic()
        self.run.history.leases[id] = (began, 2)

        def answered(call, answer):
            self.run.leases.append((id, began + 2))
            return call

        return self.ask(client, Call("grant", 0, 0), lambda: client.grant(2, id), answered)

    def revoke(self, client: Client) -> bool:
        if not self.run.leases:
            return True
        id = self.run.leases[-1][0]

        def answered(call, answer):
            # Whether it had keys is not said: it is one that changed nothing, unless its revision is nobody else's.
            return replace(call, outcome=LOST)

        return self.ask(client, Call("revoke", 0, 0, revokes=id), lambda: client.leases.LeaseRevoke(client.pb.LeaseRevokeRequest(ID=id), timeout=60), answered) or True

    def compact(self, client: Client) -> bool:
        # Not past the watcher: it must miss nothing.
        at = self.run.history.watched[-1].events[-1].revision - self.rnd.randrange(200) if self.run.history.watched else 0
        if at <= 1:
            return True
        self.run.asked["compact"] += 1
        return self.ask(client, Call("compact", 0, 0, at=at), lambda: client.compact(at, physical=self.rnd.random() < 0.5))

    def fill(self, client: Client) -> bool:
        first = self.rnd.randrange(9) * 60
        puts = [(b"many/%03d" % (first + n), self.value(20)) for n in range(120)]
        call = Call("fill", 0, 0, puts=tuple((key, brief(value), 0) for key, value in puts))
        return self.ask(client, call, lambda: client.txn(success=[client.put_op(*put) for put in puts]))

    def bulk(self, client: Client) -> bool:
        self.run.asked["bulk"] += 1
        call = Call("bulk", 0, 0, deletes=MANY)
        return self.ask(client, call, lambda: client.delete(*MANY), lambda call, answer: replace(call, deleted=answer.deleted))

    def defragment(self, client: Client) -> bool:
        self.run.asked["defragment"] += 1
        try:
            client.maintenance.Defragment(client.pb.DefragmentRequest(), timeout=60)
        except grpc.RpcError as error:
            return error.code() in REFUSALS
        return True


def watch(run: Run, port: int) -> None:
    """Watches all keys from where it stopped, until the connection breaks."""
    try:
        client = Client(port)
    except grpc.FutureTimeoutError:
        return
    watched = run.history.watched
    stream = client.watch()
    stream.create(*ALL, start_revision=(watched[-1].events[-1].revision if watched else 1) + 1, prev_kv=True)
    try:
        for answer in stream.answers:
            if answer.canceled:
                run.bad.append(f"a watcher was canceled: {answer.compact_revision} {answer.cancel_reason}")
                return
            if answer.events:
                watched.append(Response(time.monotonic(), tuple(map(event_of, answer.events))))
                run.saw(watched[-1].events[-1].revision)
    except grpc.RpcError:
        pass
    finally:
        client.close()


def wait_for(moment: str, run: Run, server: Server, limit_s: float) -> str:
    """Returns the moment in which to kill: the wanted one, or any if it does not come."""
    end, rnd = time.monotonic() + limit_s, run.rnd
    if rnd.random() < 0.3:
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(rnd.uniform(0.01, 0.3))
        server.process.send_signal(signal.SIGCONT)
    if moment == "puts":
        time.sleep(rnd.uniform(0.02, 0.6))
        return moment
    asked = run.asked[moment]
    runs = {path.name for path in server.data.rglob("*.run")}
    while time.monotonic() < end:
        if moment in ("compact", "bulk", "defragment") and run.asked[moment] > asked:
            time.sleep(rnd.uniform(0, 0.03))
            return moment
        if moment == "files" and {path.name for path in server.data.rglob("*.run")} - runs:
            time.sleep(rnd.uniform(0, 0.01))
            return moment
        if moment == "lease" and any(abs(time.monotonic() - over) < 0.05 for _, over in run.leases[-20:]):
            time.sleep(rnd.uniform(0, 0.6))
            return moment
        time.sleep(0.0005)
    return "puts"


def kill_once(run: Run, server: Server, door: int, moment: str, workers: list[Worker], limit_s: float) -> str:
    stop = threading.Event()
    threads = [threading.Thread(target=worker.work, args=(door, stop)) for worker in workers]
    threads.append(threading.Thread(target=watch, args=(run, door)))
    for thread in threads:
        thread.start()
    met = wait_for(moment, run, server, limit_s)
    server.kill9()
    stop.set()
    for thread in threads:
        thread.join()
    return met


def finish(run: Run, door: int) -> None:
    """Lets the watcher come to the end, and reads all there is then; leases may end meanwhile."""
    client = Client(door)
    threading.Thread(target=watch, args=(run, door), daemon=True).start()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = client.range(*ALL)
        time.sleep(0.1)
        watched = list(run.history.watched)
        if watched and watched[-1].events[-1].revision == found.header.revision:
            break
    run.history.watched, run.history.last = watched, (found.header.revision, tuple(map(kv_of, found.kvs)))
    client.close()


def kills(folder: Path, memory: str, rounds: int, seed: int, limit_s: float = 5.0, each=lambda number, met, server: None):
    """So many kills. The run, how often each moment was met, seconds of starts, and the server's highest charge."""
    door, run, met, starts = free_port(), Run(seed), Counter(), []
    workers = [Worker(run, number, seed * 100 + number) for number in range(CLIENTS)]
    with Server(folder, memory, options=("--etcd", f"127.0.0.1:{door}")) as server:
        for number in range(rounds):
            wanted = min(MOMENTS, key=lambda moment: (met[moment], MOMENTS.index(moment)))
            got = kill_once(run, server, door, wanted, workers, limit_s)
            met[got] += 1
            if got != wanted:
                met[wanted] += 0.5  # it does not come: others have their turn
            server.start()
            starts.append(server.started_s)
            each(number, got, server)
        finish(run, door)
        peak = server.peak()
        if "panicked" in server.log.read_text(errors="replace"):
            run.bad.append("the server panicked")
    return run, met, starts, peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="the server's budget (default 46MiB)", default="46MiB")
    parser.add_argument("--rounds", type=int, help="kills (default 200, 12 with --small)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rounds = args.rounds or (12 if args.small else 200)
    report = Report(f"kill -9 under etcd's door, {rounds} times under {args.memory}", args)
    folder = args.data / "versions-kill"
    shutil.rmtree(folder, ignore_errors=True)

    def each(number, met, server):
        print(f"  .. {number + 1} of {rounds}: {met}, ready after {server.started_s:.2f} s", file=sys.stderr)

    try:
        run, met, starts, peak = kills(folder, args.memory, rounds, args.seed, each=each)
    except StartError as error:
        report.row("a start failed", str(error)[-300:], "never", False)
        return report.end()
    faults = check(run.history)
    calls = Counter((call.kind, call.outcome) for call in run.history.calls)
    revisions = run.history.last[0] if run.history.last else 0
    report.row("kills by moment", ", ".join(f"{moment} {int(met[moment])}" for moment in MOMENTS), "each", all(met[m] >= 1 for m in MOMENTS) or args.small)
    report.row("calls", ", ".join(f"{outcome} {sum(n for (_, o), n in calls.items() if o == outcome):,}" for outcome in (DONE, REFUSED, LOST)))
    report.row("revisions, responses to the watcher", f"{revisions:,}, {len(run.history.watched):,}")
    report.row("wrong", f"{len(faults)}", "none", not faults)
    for fault in faults[:10]:
        print(f"  {fault}")
    report.row("other answers", "; ".join(sorted(set(run.bad)))[:300] or "none", "none", not run.bad)
    report.row("highest charge", mib(peak), f"<= {args.memory}", peak <= Server(folder, args.memory).budget)
    report.row("from start to ready", f"{spread(starts, 2)} s")
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
