"""kill -9 spread over the phases of a busy server; after each restart everything acknowledged is checked.

    4 writers upsert and delete, ids of their own, round and round          model: last acknowledged state of each id,
         |                                                                         and what was in flight since
         v  wait for the phase ---> a random moment more ---> kill -9 ---> restart ---> scroll all, compare

    ingest     writes in flight, no work in the background
    seal       the collection's progress says "seal: rows"        build    "seal: sample ... gather"
    merge      "merge: ..."                                       manifest MANIFEST.new stands in the data folder
"""

import argparse
import random
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, make_synthetic  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness.rest import Connection, points_body, request_bytes  # noqa: E402
from harness.server import Server, StartError, mib  # noqa: E402

PHASES = ["ingest", "seal", "build", "merge", "manifest"]
WRITERS = 4
DIM = 64
BATCH = 250
DELETED, NEVER = -2, -1


class Writer:
    """Upserts and deletes in its own range of ids. For each id: what was acknowledged last and what was tried since."""

    def __init__(self, number: int, ids: int, vectors: np.ndarray, seed: int):
        self.first, self.ids = number * ids, ids
        self.vectors, self.rnd = vectors, random.Random(seed)
        self.known = np.full(ids, NEVER, np.int64)  # turn that wrote it, DELETED or NEVER
        self.open: dict[int, set[int]] = {}  # id -> states that may have happened besides
        self.turn = 0
        self.acknowledged = 0
        self.refused: Counter = Counter()
        self.bad: list[str] = []

    def state_fits(self, at: int, state: int) -> bool:
        allowed = self.open.get(at, set()) | {int(self.known[at])}
        gone = {DELETED, NEVER}
        return state in allowed or (state in gone and bool(allowed & gone))

    def settle(self, stored: np.ndarray) -> None:
        """After a check what is stored is the truth, also for what was in flight."""
        mine = stored[self.first : self.first + self.ids]
        for at in self.open:
            self.known[at] = mine[at]
        self.open.clear()

    def run(self, port: int, stop: threading.Event) -> None:
        connection = Connection(port, timeout=30)
        try:
            while not stop.is_set():
                self.step(connection)
        except OSError:
            pass  # the kill
        finally:
            connection.close()

    def step(self, connection: Connection) -> None:
        self.turn += 1
        if self.rnd.random() < 0.25:
            chosen = self.rnd.sample(range(self.ids), 100)
            body = ('{"points":[' + ",".join(str(self.first + at) for at in chosen) + "]}").encode()
            raw, state = request_bytes("POST", f"/collections/{client.NAME}/points/delete?wait=false", body), DELETED
        else:
            start = self.rnd.randrange(self.ids - BATCH)
            chosen = range(start, start + BATCH)
            rows = self.rnd.randrange(len(self.vectors) - BATCH)
            body = points_body(self.first + start, self.vectors[rows : rows + BATCH], [{"turn": self.turn}] * BATCH)
            raw, state = request_bytes("PUT", f"/collections/{client.NAME}/points?wait=false", body), self.turn
        for at in chosen:
            self.open.setdefault(at, set()).add(state)
        answer = connection.send(raw)
        if answer.status != 200:
            self.refused[answer.status] += 1
            if answer.status != 429:
                self.bad.append(f"a write was answered {answer.status}: {answer.error}")
            for at in chosen:  # a refused write has not happened, and must not happen later
                self.open[at].discard(state)
            time.sleep(0.2)
            return
        for at in chosen:
            self.known[at] = state
            self.open.pop(at, None)
        self.acknowledged += len(chosen)


class Watch:
    """Which phase the server is in, asked as often as it answers."""

    def __init__(self, server: Server):
        self.connection = Connection(server.port)
        self.data = server.data
        self.new_manifests = [p.with_name("MANIFEST.new") for p in self.data.rglob("MANIFEST")] or [self.data / "MANIFEST.new"]

    def manifest(self) -> bool:
        return any(path.exists() for path in self.new_manifests)

    def phase(self) -> str:
        if self.manifest():
            return "manifest"
        progress = self.connection.must("GET", f"/collections/{client.NAME}").get("progress")
        if not progress:
            return "ingest"
        kind, _, step = progress["what"].partition(": ")
        return "merge" if kind != "seal" else "seal" if step == "rows" else "build"

    def until(self, wanted: str, limit_s: float, rnd: random.Random) -> str:
        """Returns the phase in which to kill: the wanted one, or another if it does not come."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if wanted == "manifest":
                for _ in range(2_000):
                    if self.manifest():
                        return "manifest"
                continue
            if self.phase() == wanted:
                time.sleep(rnd.uniform(0, {"ingest": 0.3, "seal": 0.01, "build": 0.1, "merge": 0.3}[wanted]))
                return self.phase()
        return self.phase()


def stored_state(server: Server, total: int) -> np.ndarray:
    stored = np.full(total, NEVER, np.int64)
    connection = Connection(server.port, timeout=120)
    offset = 0
    while offset is not None:
        body = {"limit": 5_000, "offset": offset, "with_payload": True}
        page = connection.must("POST", f"/collections/{client.NAME}/points/scroll", body)
        for point in page["points"]:
            stored[point["id"]] = point["payload"]["turn"]
        offset = page["next_page_offset"]
    count = connection.must("POST", f"/collections/{client.NAME}/points/count", {"exact": True})["count"]
    connection.close()
    if count != int((stored >= 0).sum()):
        raise RuntimeError(f"count says {count}, a scroll finds {int((stored >= 0).sum())}")
    return stored


def compare(writers: list[Writer], stored: np.ndarray) -> tuple[int, int]:
    """(acknowledged writes that are lost, deleted points that are back)"""
    lost = back = 0
    for writer in writers:
        mine = stored[writer.first : writer.first + writer.ids]
        for at in np.flatnonzero(mine != writer.known).tolist():
            state = int(mine[at])
            if writer.state_fits(at, state):
                continue
            if int(writer.known[at]) == DELETED and state >= 0:
                back += 1
            else:
                lost += 1
        writer.settle(stored)
    return lost, back


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="the server's budget (default 48MiB)", default="48MiB")
    parser.add_argument("--kills", type=int, help="how often (default 200, 10 with --small)")
    parser.add_argument("--ids", type=int, help="ids of one writer (default 20,000, 8,000 with --small)")
    parser.add_argument("--wait", type=float, default=20, help="seconds to wait for a phase before killing in another")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    kills = args.kills or (10 if args.small else 200)
    ids = args.ids or (8_000 if args.small else 20_000)
    report = Report(f"kill -9, {kills} times under {args.memory}", args)
    folder = args.data / "kill9"
    shutil.rmtree(folder, ignore_errors=True)
    vectors = make_synthetic.draw(4_000, DIM, args.seed)
    writers = [Writer(n, ids, vectors, args.seed * 100 + n) for n in range(WRITERS)]
    rnd = random.Random(args.seed)
    hit: Counter = Counter()
    failed, lost, back, oom, peak = [], 0, 0, 0, 0
    starts: list[float] = []
    red: list[str] = []
    with Server(folder, args.memory, log=args.data / "kill9.log") as server:
        # A low threshold, so that sealed parts are indexed and every phase of a build is there to be hit.
        client.create(server, DIM, hnsw_config={"full_scan_threshold": 512})
        for number in range(kills):
            wanted = min(PHASES, key=lambda p: (hit[p], PHASES.index(p)))
            stop = threading.Event()
            threads = [threading.Thread(target=w.run, args=(server.port, stop)) for w in writers]
            for thread in threads:
                thread.start()
            phase = Watch(server).until(wanted, args.wait, rnd)
            server.kill9()
            stop.set()
            for thread in threads:
                thread.join()
            hit[phase] += 1
            try:
                server.start()
            except StartError as error:
                failed.append(str(error)[-300:])
                break
            starts.append(server.started_s)
            info = Connection(server.port).must("GET", f"/collections/{client.NAME}")
            if info["status"] == "red":
                red.append(str(info["optimizer_status"]))
            one_lost, one_back = compare(writers, stored_state(server, WRITERS * ids))
            lost, back = lost + one_lost, back + one_back
            if server.cgroup:
                oom, peak = server.cgroup.kills(), max(peak, server.cgroup.peak())
            print(f"  .. {number + 1} of {kills}: {phase}, ready after {server.started_s:.2f} s, lost {one_lost}, back {one_back}", file=sys.stderr)
    acknowledged = sum(w.acknowledged for w in writers)
    report.row("restarts that succeeded", f"{len(starts)} of {kills}", "all", len(starts) == kills)
    for text in failed:
        report.row("  failed", text)
    report.row("phases hit", ", ".join(f"{p} {hit[p]}" for p in PHASES), "each", all(hit[p] for p in PHASES) or args.small)
    report.row("acknowledged writes and deletes", f"{acknowledged:,}, {lost} lost", "0 lost", lost == 0 and acknowledged > 0)
    report.row("red after a restart", "; ".join(sorted(set(red)))[:120] or "never", "never", not red)
    refused = sum((w.refused for w in writers), Counter())
    bad = sorted({text for w in writers for text in w.bad})
    report.row("refusals", ", ".join(f"{s}: {n}" for s, n in refused.items()) or "none", "429 only", not bad)
    for text in bad[:5]:
        report.row("  another answer", text[:120])
    report.row("deleted points back", f"{back}", "0", back == 0)
    report.row("killed for memory; highest charge", f"{oom}; {mib(peak)}", f"0; <= {mib(server.budget)}", oom == 0 and peak <= server.budget)
    report.row("from start to ready", f"{spread(starts, 2)} s" if starts else "never")
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
