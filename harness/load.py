"""Load from several processes and connections, each request prepared beforehand.

    processes x threads, one connection each --> the same list of requests, dealt out --> statuses, latencies

Python's lock lets one thread of a process compute at a time, which is enough while the server is the slower side; the
figure of an empty handler (`GET /livez`) beside a rate says whether that held.
"""

import multiprocessing
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from harness.rest import Connection


@dataclass
class Load:
    elapsed_s: float
    statuses: Counter = field(default_factory=Counter)
    latencies_ms: np.ndarray = field(default_factory=lambda: np.zeros(0))
    bodies: list = field(default_factory=list)  # (request number, body) where they were asked for
    reopened: int = 0

    @property
    def answered(self) -> int:
        return sum(self.statuses.values())

    @property
    def per_second(self) -> float:
        return self.statuses[200] / self.elapsed_s

    def percentile(self, p: float) -> float:
        return float(np.percentile(self.latencies_ms, p)) if len(self.latencies_ms) else float("nan")


def _one(port, requests, numbers, until, keep, out, timeout):
    connection = Connection(port, timeout=timeout)
    statuses, times, bodies = Counter(), [], []
    for number in numbers:
        if until is not None and time.monotonic() >= until:
            break
        start = time.perf_counter()
        try:
            answer = connection.send(requests[number])
            statuses[answer.status] += 1
            if keep:
                bodies.append((number, answer.body))
        except OSError as error:
            statuses[type(error).__name__] += 1
            time.sleep(0.05)
        times.append((time.perf_counter() - start) * 1e3)
    connection.close()
    out.append((statuses, times, bodies, connection.reopened))


def _process(port, requests, dealt, until, keep, pipe, timeout):
    out: list = []
    threads = [threading.Thread(target=_one, args=(port, requests, n, until, keep, out, timeout)) for n in dealt]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(out)


def endless(numbers: list[int]):
    while True:
        yield from numbers


def run(
    port: int,
    requests: list[bytes],
    connections: int,
    *,
    seconds: float | None = None,
    processes: int = 2,
    keep: bool = False,
    timeout: float = 60.0,
) -> Load:
    """Each request once, or with `seconds` again and again until the time is over."""
    processes = max(1, min(processes, connections))
    until = None if seconds is None else time.monotonic() + seconds
    deal: list[list] = [[] for _ in range(processes)]
    for c in range(connections):
        numbers = list(range(c, len(requests), connections)) or [c % len(requests)]
        deal[c % processes].append(numbers if seconds is None else endless(numbers))
    # Forked workers share the prepared requests, so gigabytes of bodies exist once.
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    workers = []
    for dealt in deal:
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=_process, args=(port, requests, dealt, until, keep, there, timeout))
        worker.start()
        workers.append((worker, here))
    load = Load(0.0)
    times: list[float] = []
    for worker, here in workers:
        for statuses, part, bodies, reopened in here.recv():
            load.reopened += reopened
            load.statuses.update(statuses)
            times.extend(part)
            load.bodies.extend(bodies)
        worker.join()
    load.elapsed_s = time.monotonic() - start
    load.latencies_ms = np.asarray(times)
    load.bodies.sort(key=lambda pair: pair[0])
    return load
