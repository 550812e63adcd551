"""A flood: 64 connections upload bodies of 1 MB while 64 others search, under a budget that is far too small for all of
them at once.

    alone   1 connection uploads                     --> accepted points/s
    flood  64 upload + 64 search, N seconds          --> statuses, accepted points/s, search p99, charge
    after   every acknowledged point is read back    --> none lost;  time until answers are as before

Each uploading connection owns a range of ids and goes round it, so the collection stays at --points; a point's payload
says which round wrote it. A 429 is waited out as its Retry-After says.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, make_synthetic  # noqa: E402
from bench.report import Report  # noqa: E402
from harness import load  # noqa: E402
from harness.cgroup import Sampler  # noqa: E402
from harness.rest import Connection, request_bytes, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

DIM = 100
BODY = 1_000_000  # bytes
POOL = 16  # different blocks of vectors
PRELOADED = 1 << 40  # ids of the points that are there before the flood


def vector_blocks() -> tuple[list[np.ndarray], list[bytes]]:
    """Blocks of vectors and their JSON, each such that a whole body has about 1 MB."""
    drawn = make_synthetic.draw(POOL * 1_200, DIM, 5)
    blocks, texts, at = [], [], 0
    for _ in range(POOL):
        rows, size = [], 0
        while size < BODY - 30_000:
            row = "[" + ",".join(f"{v:.9g}" for v in drawn[at].tolist()) + "]"
            rows.append(row)
            size += len(row) + 22  # its id and payload
            at += 1
        blocks.append(drawn[at - len(rows) : at])
        texts.append(",".join(rows).encode())
    return blocks, texts


class Uploader:
    """One connection with its own ids. `written` holds, for each id, the round that was acknowledged last."""

    def __init__(self, port: int, first: int, count: int, blocks, texts):
        self.port, self.first, self.count, self.blocks, self.texts = port, first, count, blocks, texts
        self.acknowledged = np.full(count, -1, np.int32)
        self.tried = np.full(count, -1, np.int32)
        self.statuses: Counter = Counter()
        self.bad: list[str] = []
        self.accepted = self.reopened = 0

    def run(self, until: float) -> "Uploader":
        connection = Connection(self.port, timeout=120)
        at, turn = 0, 0
        while time.monotonic() < until:
            size = min(len(self.blocks[turn % POOL]), self.count - at)
            texts = self.texts[turn % POOL]
            if size < len(self.blocks[turn % POOL]):
                texts = b"],".join(texts.split(b"],")[:size]) + (b"]" if size else b"")
            ids = ",".join(map(str, range(self.first + at, self.first + at + size)))
            pays = ",".join([f'{{"turn":{turn}}}'] * size)
            body = b'{"batch":{"ids":[%s],"vectors":[%s],"payloads":[%s]}}' % (ids.encode(), texts, pays.encode())
            self.tried[at : at + size] = turn
            try:
                answer = connection.send(request_bytes("PUT", f"/collections/{client.NAME}/points?wait=false", body))
            except OSError as error:
                self.statuses[type(error).__name__] += 1
                self.bad.append(repr(error))
                time.sleep(0.1)
                continue
            self.statuses[answer.status] += 1
            if answer.status == 200:
                self.acknowledged[at : at + size] = turn
                self.accepted += size
            elif answer.status == 429 and "retry-after" in answer.headers:
                time.sleep(min(float(answer.headers["retry-after"]), max(0.0, until - time.monotonic())))
            else:
                self.bad.append(f"{answer.status} {answer.error} {answer.headers.get('retry-after')}")
            at += size
            turn += 1
            if at >= self.count:
                at = 0
        self.reopened = connection.reopened
        connection.close()
        return self

    def outcome(self):
        return self.first, self.acknowledged, self.tried, self.statuses, self.accepted, self.bad[:5], self.reopened


def upload(port: int, connections: int, points: int, seconds: float, blocks, texts, processes: int = 2) -> list:
    """Runs the uploaders in forked processes and gathers their outcomes."""
    share = points // connections
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("fork")

    def work(numbers, pipe):
        uploaders = [Uploader(port, n * share, share, blocks, texts) for n in numbers]
        threads = [threading.Thread(target=u.run, args=(until,)) for u in uploaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send([u.outcome() for u in uploaders])

    running = []
    for p in range(min(processes, connections)):
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(range(p, connections, processes), there))
        worker.start()
        running.append((worker, here))
    outcomes = []
    for worker, here in running:
        outcomes += here.recv()
        worker.join()
    return outcomes


def searches(port: int, requests: list[bytes], connections: int, seconds: float, out: list) -> threading.Thread:
    def work():
        out.append(load.run(port, requests, connections, seconds=seconds, processes=1))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def read_back(port: int, outcomes, blocks) -> tuple[int, int, int]:
    """(acknowledged ids, missing or older than acknowledged, vectors that differ in a sample)."""
    total = max(first + len(ack) for first, ack, *_ in outcomes)
    stored = np.full(total, -1, np.int32)
    connection = Connection(port, timeout=120)
    offset = 0
    while offset is not None and offset < PRELOADED:
        body = {"limit": 5_000, "offset": offset, "with_payload": True, "with_vector": False}
        page = connection.must("POST", f"/collections/{client.NAME}/points/scroll", body)
        for point in page["points"]:
            if point["id"] < total:
                stored[point["id"]] = point["payload"]["turn"]
        offset = page["next_page_offset"]
    acknowledged = lost = 0
    for first, ack, tried, *_ in outcomes:
        here = stored[first : first + len(ack)]
        acknowledged += int((ack >= 0).sum())
        lost += int(((ack >= 0) & ((here < ack) | (here > tried))).sum())
    # A vector is right if it stands in the block that its round uploaded.
    rng = np.random.default_rng(1)
    sample = rng.choice(np.flatnonzero(stored >= 0), 1_000)
    differ = 0
    body = {"ids": sample.tolist(), "with_vector": True, "with_payload": True}
    for point in connection.must("POST", f"/collections/{client.NAME}/points", body):
        block = blocks[point["payload"]["turn"] % POOL]
        vector = np.array(point["vector"], np.float32)
        if np.abs(block - vector / np.linalg.norm(vector)).max(1).min() > 1e-4:
            differ += 1
    return acknowledged, lost, differ


def until_normal(port: int, requests: list[bytes], before_ms: float, texts, limit_s: float = 60) -> float:
    """Seconds until an upload is acknowledged and visible within 2 s and searches are about as fast as before."""
    connection = Connection(port, timeout=60)
    ids = ",".join(str(PRELOADED + 10**6 + i) for i in range(len(texts[0].split(b"],"))))
    raw = request_bytes(
        "PUT", f"/collections/{client.NAME}/points?wait=true", b'{"batch":{"ids":[%s],"vectors":[%s]}}' % (ids.encode(), texts[0])
    )
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        began = time.monotonic()
        upload_fine = connection.send(raw).status == 200 and time.monotonic() - began < 2
        seen = load.run(port, requests[:50], 1)
        if upload_fine and seen.statuses[200] == 50 and seen.percentile(50) <= max(4 * before_ms, 20):
            return time.monotonic() - start
        time.sleep(0.2)
    return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default=None, help="the server's budget (default 96MiB, 64MiB with --small)")
    parser.add_argument("--seconds", type=float, help="length of the flood (default 300, 10 with --small)")
    parser.add_argument("--alone", type=float, help="length of the upload on one connection (default 60, 5 with --small)")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--points", type=int, help="ids that are uploaded round and round (default 1,000,000; 64,000 with --small)")
    args = parser.parse_args()
    memory = args.memory or ("64MiB" if args.small else "96MiB")
    seconds = args.seconds or (10 if args.small else 300)
    alone_s = args.alone or (5 if args.small else 60)
    points = args.points or (64_000 if args.small else 1_000_000)
    blocks, texts = vector_blocks()
    preload = make_synthetic.draw(20_000, DIM, 6)
    requests = [client.query_request(v) for v in make_synthetic.draw(2_000, DIM, 7)]
    report = Report(f"flood: {args.connections} upload + {args.connections} search for {seconds:.0f} s under {memory}", args)
    folder = args.data / "flood"

    def fresh() -> Server:
        shutil.rmtree(folder, ignore_errors=True)
        return Server(folder, memory, log=args.data / "flood.log")

    with fresh() as server:
        client.create(server, DIM)
        outcomes = upload(server.port, 1, points, alone_s, blocks, texts)
        alone = sum(o[4] for o in outcomes) / alone_s
    with fresh() as server:
        client.create(server, DIM)
        client.upload_light(server, preload, first_id=PRELOADED)
        wait_green(Connection(server.port), client.NAME, 300)
        before_ms = load.run(server.port, requests[:500], 1).percentile(50)
        sampler = Sampler(lambda: (server.charge(), server.memory()["unaccounted_bytes"]))
        found: list[load.Load] = []
        thread = searches(server.port, requests, args.connections, seconds, found)
        outcomes = upload(server.port, args.connections, points, seconds, blocks, texts)
        normal_s = until_normal(server.port, requests, before_ms, texts)
        thread.join()
        charge = max((c for c, _ in sampler.stop()), default=0)
        acknowledged, lost, differ = read_back(server.port, outcomes, blocks)
        peak, alive = server.peak(), server.alive()
        kills = server.cgroup.kills() if server.cgroup else 0
    shutil.rmtree(folder, ignore_errors=True)

    statuses = sum((o[3] for o in outcomes), Counter())
    bad = [text for o in outcomes for text in o[5]]
    flood_rate = sum(o[4] for o in outcomes) / seconds
    seen = found[0]
    strange = {s: n for s, n in seen.statuses.items() if s not in (200, 429)}
    report.row("killed", f"{kills} times", "never", kills == 0 and alive)
    report.row("highest charge (kernel's peak; samples)", f"{mib(peak)}; {mib(charge)}", f"<= {mib(server.budget)}", peak <= server.budget)
    report.row("uploads answered", json.dumps({str(k): v for k, v in statuses.items()}), "200 or 429 with Retry-After", not bad)
    for text in sorted(set(bad))[:5]:
        report.row("  another answer", text[:120])
    report.row("searches answered", json.dumps({str(k): v for k, v in seen.statuses.items()}), "200 or 429", not strange)
    closed = sum(o[6] for o in outcomes) + seen.reopened
    report.row("kept connections found closed and opened again", f"{closed:,}")
    report.row("accepted, one connection alone", f"{alone:,.0f} points/s")
    ratio = flood_rate / alone if alone else 0.0
    report.row("accepted in the flood", f"{flood_rate:,.0f} points/s, {ratio:.2f}x", ">= 0.5x", ratio >= 0.5, speed=True)
    p99 = seen.percentile(99)
    report.row("search p50, p99 in the flood", f"{seen.percentile(50):,.0f} ms, {p99:,.0f} ms", "p99 <= 2,000 ms", p99 <= 2_000, speed=True)
    report.row("acknowledged points", f"{acknowledged:,}, {lost} lost", "0 lost", lost == 0 and acknowledged > 0)
    report.row("vectors of 1,000 of them", f"{differ} differ", "0", differ == 0)
    report.row("back to normal after", f"{normal_s:.1f} s", "<= 10 s", normal_s <= 10, speed=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
