"""What clients can make grow without a single point: collections, aliases, names of vectors, metadata.

    48 MiB in a cgroup     create until all are there, or 507 says with numbers why not; the charge never exceeds the budget
    the folder at 24 MiB   serves, or ends with code 10 and the least budget, with which it then serves

The folder is opened at 48 MiB once more at the end.
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.report import Report  # noqa: E402
from harness.server import Server, StartError, mib, parse_size  # noqa: E402

PLAIN = {"vectors": {"size": 4, "distance": "Dot"}}
WIDE = {"vectors": {f"{index:03}" + "n" * 197: {"size": 4, "distance": "Dot"} for index in range(60)}}
ALIASES_A_REQUEST = 1000
# Collections are counted for the slope between these shares of all of them: 4,000 and 16,000 of 16,384.
SLOPE = (0.245, 0.977)


@dataclass
class Row:
    kind: str
    wanted: int
    made: int = 0
    refusal: str = ""
    killed: bool = False
    slope: float = 0.0
    peak: int = 0
    charge: int = 0
    again: list[tuple[str, bool]] = field(default_factory=list)

    def is_good(self, budget: int) -> bool:
        return not self.killed and (self.made == self.wanted or bool(self.refusal)) and max(self.charge, self.peak) <= budget


class Client:
    def __init__(self, server: Server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def send(self, method: str, path: str, body: object = None) -> tuple[int, dict]:
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())


def steps(kind: str, count: int):
    """Each request with how many things it makes."""
    if kind == "aliases":
        yield ("PUT", "/collections/c", PLAIN), 0
        for first in range(0, count, ALIASES_A_REQUEST):
            names = range(first, min(first + ALIASES_A_REQUEST, count))
            actions = [{"create_alias": {"collection_name": "c", "alias_name": f"alias-{name:06}"}} for name in names]
            yield ("POST", "/collections/aliases", {"actions": actions}), len(names)
        return
    for number in range(count):
        body = {"plain": PLAIN, "wide": WIDE, "meta": {**PLAIN, "metadata": {"text": f"{number:06}" + "m" * 60_000}}}[kind]
        yield ("PUT", f"/collections/c-{number:06}", body), 1


def fill(server: Server, row: Row) -> None:
    client, at = Client(server), {}
    try:
        for request, makes in steps(row.kind, row.wanted):
            status, answer = client.send(*request)
            if status == 507:
                row.refusal = answer["status"]["error"]
                break
            assert status == 200, (row.made, status, answer)
            row.made += makes
            for share in SLOPE:
                if share not in at and row.made >= share * row.wanted:
                    at[share] = (row.made, server.charge())
        row.charge = server.charge()
        # Short requests still have room.
        for path in ("/memory", "/collections", "/aliases", "/metrics"):
            client.connection.request("GET", path)
            answer = client.connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
    except (OSError, http.client.HTTPException):
        row.killed = True
    if len(at) == 2:
        (few, less), (many, more) = at[SLOPE[0]], at[SLOPE[1]]
        row.slope = (more - less) / (many - few)
    row.peak = server.peak()
    row.killed |= not server.alive()


def again(data: Path, budget: str, row: Row) -> str | None:
    """Opens the folder at another budget. Returns the least one, if that is what it says."""
    server = Server(data, budget)
    try:
        server.start()
        what = "aliases" if row.kind == "aliases" else "collections"
        found = len(server.get(f"/{what}")["result"][what])
        said = "serves" if found == row.made else f"LOST {row.made - found}"
        row.again.append((f"{budget}: {said}, charge {mib(server.charge())}, {server.started_s:.1f} s", found == row.made))
        server.stop()
        return None
    except StartError as error:
        code = server.process.returncode if server.process else None
        least = re.findall(r"at least ([\d.]+ [KMG]iB)", str(error))
        row.again.append((f"{budget}: exit {code}, least {least[-1] if least else 'NOT NAMED'}", code == 10 and bool(least)))
        return least[-1].replace(" ", "") if least else None
    finally:
        server.close()


def measure(scratch: Path, kind: str, count: int, budget: str, smaller: str) -> Row:
    row = Row(kind, count)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        data = Path(folder) / "data"
        server = Server(data, budget).start()
        if server.cgroup is None:
            print("NOT LIMITED: no cgroup may be made here", file=sys.stderr)
        try:
            fill(server, row)
            if server.alive():
                server.kill9()
        finally:
            server.close()
        least = again(data, smaller, row)
        if least:
            again(data, least, row)
        again(data, budget, row)
    return row


COUNTS = {"plain": 16_384, "aliases": 100_000, "wide": 414, "meta": 170}
# In small: the two large kinds are quickly made, so there is less room for as many.
SMALL = {"plain": (800, "48MiB"), "aliases": (5_000, "48MiB"), "wide": (414, "32MiB"), "meta": (170, "32MiB")}
SLOPE_MOST = 1 << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kinds", nargs="*", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--memory", default="48MiB")
    parser.add_argument("--smaller", default="24MiB")
    parser.add_argument("--small", action="store_true", help="fewer, or at 32 MiB; the bytes of each are not checked")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data", type=Path, default=Path(".bench"))
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    report = Report(f"what grows without a point, {args.memory}", args)
    for kind in args.kinds:
        count, memory = SMALL[kind] if args.small else (COUNTS[kind], args.memory)
        row = measure(args.data, kind, count, memory, args.smaller)
        made = f"{row.made:,} of {row.wanted:,}, charge {mib(row.charge)}, peak {mib(row.peak)}{', KILLED' if row.killed else ''}"
        wanted = f"all, or 507; never killed, and never above {memory}"
        report.row(f"{kind}: made", made, wanted, row.is_good(parse_size(memory)))
        if row.refusal:
            report.row(f"{kind}: refused", row.refusal, "with numbers", any(letter.isdigit() for letter in row.refusal))
        if kind in ("plain", "aliases"):
            report.row(f"{kind}: charge of each", f"{row.slope:,.0f} bytes", f"<= {SLOPE_MOST:,}", row.slope <= SLOPE_MOST, speed=True)
        for said, is_good in row.again:
            report.row(f"{kind}: the folder again", said, "serves all, or exit 10", is_good)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
