"""A million keys in etcd's door under 64 MiB: loaded, watched, read as they were, compacted, and found again after kill -9.

    transactions of 100 puts, several connections --> ramekin serve --etcd --memory 64MiB, in a memory cgroup
    one key a twentieth of a second ------------------>     |  watched meanwhile: how late an event comes
    changes, deletes --> reads at an old revision, counts, compaction --> ledger --> kill -9 --> ready, every key compared
"""

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo.progress import Progress, seconds  # noqa: E402
from harness.etcd import Client, error_of  # noqa: E402
from harness.server import Server, binary, free_port, mib  # noqa: E402

MEMORY = "64MiB"
KEY_BYTES, VALUE_BYTES, BATCH, CONNECTIONS = 64, 256, 100, 8
PODS = 1_000  # in a namespace
SEVENTH = range(7 * PODS, 8 * PODS)
ROOT, WATCHED = b"/registry/pods/", b"/demo/watched/"
SCATTER = 611_953  # a prime, so that every key has its turn
POOL = random.Random(64).randbytes(1 << 20)
PAGE = 1_000
SHORT = "etcdserver: too many requests"  # memory is short for the moment: the same request may come again


def key(number: int) -> bytes:
    """A name in its namespace, of which each has 1,000; the names of neighbours in time are no neighbours."""
    name = hashlib.blake2b(number.to_bytes(8), digest_size=13).hexdigest()[:25]
    return ROOT + f"namespace-{number // PODS:04}/{name}-{number:08}".encode()


def value(number: int, version: int = 1) -> bytes:
    """Bytes that do not compress, and can be told again afterwards."""
    at = (number * 7919 + version * 104_729) % (len(POOL) - VALUE_BYTES)
    return POOL[at : at + VALUE_BYTES]


def end_of(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes([prefix[-1] + 1])


class Refused:
    """How often the server asked for patience."""

    def __init__(self):
        self.count = 0

    def patiently(self, call):
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if error.details() != SHORT:
                    raise
                self.count += 1
                time.sleep(0.05)


class Watcher:
    """Puts a key each twentieth of a second, and notes how long after it was sent its event is here."""

    def __init__(self, port: int):
        self.client, self.lags, self.sent = Client(port), [], 0
        self.ended = threading.Event()
        self.watch = self.client.watch()
        self.watch.create(WATCHED, end_of(WATCHED))
        assert self.watch.next().created
        self.threads = [threading.Thread(target=self._put), threading.Thread(target=self._read, daemon=True)]
        for thread in self.threads:
            thread.start()

    def _put(self):
        refused = Refused()
        while not self.ended.wait(0.05):
            refused.patiently(lambda: self.client.put(WATCHED + b"%08d" % self.sent, b"%d" % time.monotonic_ns()))
            self.sent += 1

    def _read(self):
        try:
            while True:
                for event in self.watch.next().events:
                    self.lags.append((time.monotonic_ns() - int(event.kv.value)) / 1e6)
        except grpc.RpcError:
            pass  # closed

    def stop(self) -> str:
        self.ended.set()
        self.threads[0].join()
        give_up = time.monotonic() + 10
        while len(self.lags) < self.sent and time.monotonic() < give_up:
            time.sleep(0.01)
        self.watch.close()
        self.client.close()
        lags = sorted(self.lags) or [0.0]
        return (
            f"{len(self.lags):,} of {self.sent:,} events came, from put to event p50 {lags[len(lags) // 2]:.1f} ms,"
            f" p99 {lags[len(lags) * 99 // 100]:.1f} ms, longest {lags[-1]:.0f} ms"
        )


def load(port: int, keys: int, step: int) -> int:
    """All keys in transactions, each so many after the one before; the revision afterwards."""
    progress, refused = Progress("load", keys, "keys"), Refused()
    lock, batches, done = threading.Lock(), iter(range(0, keys, BATCH)), 0

    def send(_):
        nonlocal done
        client = Client(port)
        while True:
            with lock:
                first = next(batches, None)
            if first is None:
                return client.close()
            numbers = [at * step % keys for at in range(first, min(first + BATCH, keys))]
            ops = [client.put_op(key(number), value(number)) for number in numbers]
            refused.patiently(lambda: client.txn(success=ops))
            with lock:
                done += len(numbers)
                progress.at(done)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(send, range(CONNECTIONS)))
    took = time.monotonic() - progress.start
    waited = f", {refused.count} were asked to come again" if refused.count else ""
    progress.end(f"{keys:,} keys of {KEY_BYTES} + {VALUE_BYTES} bytes ({keys / took:,.0f} keys/s in transactions of {BATCH}{waited})")
    client = Client(port)
    revision = client.range(b"x").header.revision
    client.close()
    return revision


def timed(call):
    start = time.monotonic()
    found = call()
    return found, f"{(time.monotonic() - start) * 1e3:,.1f} ms"


def look(client: Client, loaded: int) -> None:
    """Counts, the past and a compaction."""
    everything, took = timed(lambda: client.range(ROOT, end_of(ROOT), count_only=True).count)
    print(f"count: {everything:,} keys under {ROOT.decode()} in {took}")
    namespace = ROOT + b"namespace-0007/"
    count, took = timed(lambda: client.range(namespace, end_of(namespace), count_only=True).count)
    print(f"count: {count:,} keys under {namespace.decode()} in {took}")

    changed = key(SEVENTH.start)
    client.put(changed, b"changed")
    deleted = client.delete(namespace, end_of(namespace)).deleted
    now, _ = timed(lambda: client.range(namespace, end_of(namespace), count_only=True).count)
    then, took = timed(lambda: client.range(namespace, end_of(namespace), revision=loaded, count_only=True).count)
    old = client.range(namespace, end_of(namespace), revision=loaded).kvs
    same = sorted((kv.key, kv.value) for kv in old) == sorted((key(n), value(n)) for n in SEVENTH)
    print(f"past: {deleted:,} of them are deleted, {now} are left; at revision {loaded:,} there are {then:,} ({took}), {'each as it was' if same else 'and they are WRONG'}")

    compacted, took = timed(lambda: client.compact(client.range(b"x").header.revision, physical=True).header.revision)
    told = error_of(lambda: client.range(changed, revision=loaded))[1]
    print(f"compact: to revision {compacted:,} in {took}; at revision {loaded:,} it now says: {told}")
    for number in SEVENTH:
        client.put(key(number), value(number))


def held(server: Server) -> str:
    return "held" if max(server.peak(), server.memory()["peak_bytes"]) <= server.budget else "NOT held"


def show_memory(server: Server) -> None:
    print(f"\n$ ramekin memory {server.url}", flush=True)
    subprocess.run([str(binary()), "memory", server.url], check=False)
    kernel = f"kernel's peak charge {mib(server.peak())}" if server.cgroup else f"peak resident set {mib(server.peak())}"
    print(f"{kernel}, budget {mib(server.budget)}: {held(server)}\n")


def compare(port: int, keys: int) -> int:
    """Reads all in pages and compares each value with what was written; how many are right."""
    progress, client = Progress("compare", keys, "keys"), Client(port)
    at, seen, right = ROOT, 0, 0
    while True:
        page = client.range(at, end_of(ROOT), limit=PAGE)
        for kv in page.kvs:
            number = int(kv.key[len(ROOT) + len(b"namespace-0007/") :].split(b"-")[1])
            right += kv.key == key(number) and kv.value == value(number)
        seen += len(page.kvs)
        progress.at(seen)
        if not page.more:
            break
        at = page.kvs[-1].key + b"\0"
    client.close()
    progress.end(f"{right:,} of {keys:,} keys are there with the value that was acknowledged")
    return right


ETCD = """\
etcd keeps an index of all keys and versions in memory, about 120 bytes a key and 30 a version, maps its whole file, and has no budget.
As published for 1,000,000 keys of 64 + 256 bytes: 360 MB settled, 833 MB at its peak, 739 MB after a restart."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".demo/versions"), help="folder for the data, made anew by each run")
    parser.add_argument("--keys", type=int, default=1_000_000, help="at least 8,000")
    parser.add_argument("--scattered", action="store_true", help="load in no order of the keys, which merges feel; else namespace by namespace")
    args = parser.parse_args()
    start = time.monotonic()
    shutil.rmtree(args.data, ignore_errors=True)
    door = free_port()
    server = Server(args.data / "server", MEMORY, log=args.data / "server.log", options=("--etcd", f"127.0.0.1:{door}"))
    with server:
        where = "in a memory cgroup" if server.cgroup else "without a cgroup (not permitted here; the resident set is measured)"
        print(f"server: etcd's door on 127.0.0.1:{door}, --memory {MEMORY}, {where}, ready after {server.started_s:.2f} s, log {server.log}")
        watcher = Watcher(door)
        loaded = load(door, args.keys, SCATTER if args.scattered else 1)
        print(f"watch: {watcher.stop()}")
        client = Client(door)
        look(client, loaded)
        client.close()
        show_memory(server)
        server.kill9()
        server.start()
        client, took = timed(lambda: Client(door))
        print(f"kill -9: ready again after {server.started_s:.2f} s; charged {mib(server.charge())}, on disk {mib(server.disk_bytes())}")
        client.close()
        right = compare(door, args.keys)
        charged = f"{mib(server.charge())} charged, {mib(server.peak())} at most in both lives; {MEMORY} {held(server)}"
    print(f"\nramekin: {charged}\n{ETCD}\n\ndone in {seconds(time.monotonic() - start)}")
    return 0 if right == args.keys else 1


if __name__ == "__main__":
    sys.exit(main())
