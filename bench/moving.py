"""A budget that moves while the server is searched: 256MiB, then 64MiB, then 256MiB again.

    8 connections search without a pause ------------------------------------------------------------------->
    before           | PUT /memory 64MiB | under it within 10 s, and staying there | PUT /memory 256MiB | after
    recall                                                    recall                                      recall

No query may fail in all this time. Rates are of whole seconds, so that each is of one budget; the slowest answer after
each change stands beside them.
"""

import argparse
import shutil
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness import light  # noqa: E402
from harness.cgroup import Sampler  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, mib, parse_size  # noqa: E402

UNDER_S = 10
MIDDLE = 2_000  # queries whose recall is taken in the middle


@dataclass
class Move:
    """One change of the budget: when it was asked and with which charge, what was answered, when the charge was under it."""

    asked: float
    charge: int
    status: int
    answered_s: float
    under_s: float | None


class Searching:
    """Load from its own process, in the background."""

    def __init__(self, folder: Path, port: int, requests: list[bytes], connections: int, seconds: float):
        self.seen: dict = {}
        self.error = ""

        def run() -> None:
            try:
                self.seen = light.run(folder, port, requests, connections, seconds)
            except RuntimeError as error:
                self.error = str(error)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def failed(self) -> str:
        """What was not answered with 200, in words; empty if all was."""
        other = {status: count for status, count in self.seen.get("statuses", {}).items() if status != "200"}
        return self.error or ", ".join(f"{count:,} x {status}" for status, count in other.items())

    def between(self, start: float, end: float) -> tuple[list[float], float]:
        """Answers of each whole second in between, and the slowest of them in ms."""
        first, last = start - self.seen["began"], end - self.seen["began"]
        numbers = [n for n in range(len(self.seen["each_second"])) if n >= first and n + 1 <= last]
        return [self.seen["each_second"][n] for n in numbers], max((self.seen["slowest_ms"][n] for n in numbers), default=0)


def move(server: Server, budget: str) -> Move:
    """Asks for another budget, and looks at the charge from that moment on."""
    wanted, under, charge = parse_size(budget), [], server.charge()
    asked = time.monotonic()

    def look() -> None:
        while time.monotonic() - asked < 6 * UNDER_S:
            if server.charge() <= wanted:
                under.append(time.monotonic() - asked)
                return
            time.sleep(0.02)

    looking = threading.Thread(target=look)
    looking.start()
    answer = Connection(server.port, timeout=120).ask("PUT", "/memory", {"budget": budget})
    answered_s = time.monotonic() - asked
    looking.join()
    return Move(asked, charge, answer.status, answered_s, under[0] if under else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="the budget to begin and to end with (default 256MiB, 64MiB with --small)")
    parser.add_argument("--to", help="the budget in between (default 64MiB, 24MiB with --small)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="at each budget (default 15, 3 with --small)")
    args = parser.parse_args()
    memory = args.memory or ("64MiB" if args.small else "256MiB")
    to = args.to or ("24MiB" if args.small else "64MiB")
    seconds = args.seconds or (3 if args.small else 15)
    data = dataset.read(args)
    report = Report(f"a budget that moves: {len(data.base):,} x {data.dim} ({data.name}), {memory}, {to}, {memory}", args)
    folder = args.data / "moving"
    shutil.rmtree(folder, ignore_errors=True)
    requests = [client.query_request(q) for q in data.query]
    with Server(folder, memory, log=args.data / "moving.log") as server:
        client.create(server, data.dim)
        client.upload_light(server, data.base)
        wait_green(Connection(server.port), client.NAME, 3_600, tick=client.teller(10))
        recalls = {"before": client.search(server, data)[0]}
        # The last part has what the changes and the search in the middle leave of the slack.
        slack = 4 if args.small else 2 * UNDER_S
        searching = Searching(args.data, server.port, requests, args.connections, 3 * seconds + slack)
        begun = time.monotonic()
        time.sleep(seconds)
        down = move(server, to)
        staying = Sampler(server.charge, every=0.05)
        time.sleep(seconds)
        searched = time.monotonic()
        # Beside the load each query takes its time: a part of them, so that the load lasts until the end.
        part = replace(data, query=data.query[:MIDDLE], truth=data.truth[:MIDDLE])
        recalls[f"at {to}"] = client.search(server, part)[0]
        staying.stop()
        up = move(server, memory)
        searching.thread.join()
        ended = time.monotonic()
        recalls["after"] = client.search(server, data)[0]
        ledger, kills = server.memory(), server.cgroup.kills() if server.cgroup else 0
        alive, highest = server.alive(), server.peak()
    failed = searching.failed()
    report.row("queries that failed", failed or "none", "none", not failed and bool(searching.seen))
    if searching.seen:
        phases = [(f"before, {memory}", begun, down.asked), (f"at {to}", down.asked, searched), (f"after, {memory}", up.asked, ended)]
        for name, start, end in phases:
            rates, slowest = searching.between(start, end)
            report.row(f"{name}: queries/s, second by second", f"{spread(rates or [0])}, slowest {slowest:.0f} ms")
    under = "never" if down.under_s is None else f"{down.under_s:.2f} s"
    asked = f"answered with {down.status} after {down.answered_s:.2f} s"
    in_time = down.under_s is not None and down.under_s <= UNDER_S
    report.row(f"PUT /memory {to}: charge under it after", f"{under} from {mib(down.charge)}, {asked}", f"<= {UNDER_S} s", in_time)
    most, when = max(((charge, at) for at, charge in staying.samples), default=(0, 0))
    looks = f"highest charge from then on, {len(staying.samples)} looks"
    report.row(looks, f"{mib(most)}, {when:.1f} s later", f"<= {to}", most <= parse_size(to))
    report.row(f"PUT /memory {memory}", f"answered with {up.status} after {up.answered_s:.2f} s", "200", up.status == 200)
    report.row("highest charge of all; at the end", f"{mib(highest)}; {mib(ledger['charged_bytes'])}", f"<= {memory}", highest <= parse_size(memory))
    report.row("killed", f"{kills} times", "never", kills == 0 and alive)
    for name, recall in recalls.items():
        report.row(f"recall@10 {name}", f"{recall:.4f}", ">= 0.95", recall >= 0.95)
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
