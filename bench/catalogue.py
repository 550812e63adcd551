"""What clients can make grow without a single point: collections, aliases, names of vectors, metadata.

    48 MiB in a cgroup     create until all are there, or 507 says with numbers why not; the charge stays below the budget
    the folder at 24 MiB   serves, or ends with code 10 and the least budget, with which it then serves

    python -m bench.catalogue [--kinds plain aliases wide meta] [--share 1.0]
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from harness.cgroup import MIB
from harness.server import Server, StartError, mib, parse_size

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
    again: list[str] = field(default_factory=list)

    def is_good(self, budget: int) -> bool:
        return not self.killed and (self.made == self.wanted or bool(self.refusal)) and self.charge <= budget


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
        listed = server.get("/collections")["result"]["collections"]
        named = server.get("/aliases")["result"]["aliases"]
        found = len(named) if row.kind == "aliases" else len(listed)
        said = "serves" if found == row.made else f"LOST {row.made - found}"
        row.again.append(f"{budget}: {said}, charge {mib(server.charge())}, {server.started_s:.1f} s")
        server.stop()
        return None
    except StartError as error:
        code = server.process.returncode if server.process else None
        least = re.findall(r"at least ([\d.]+ [KMG]iB)", str(error))
        row.again.append(f"{budget}: exit {code}, least {least[-1] if least else 'NOT NAMED'}")
        return least[-1].replace(" ", "") if least else None
    finally:
        server.close()


def measure(kind: str, count: int, budget: str, smaller: str) -> Row:
    row = Row(kind, count)
    with tempfile.TemporaryDirectory() as folder:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the counts of the full run")
    parser.add_argument("--memory", default="48MiB")
    parser.add_argument("--smaller", default="24MiB")
    options = parser.parse_args()
    print(f"{'kind':<8} {'wanted':>8} {'made':>8} {'bytes each':>10} {'charge':>10} {'peak':>10}")
    good = True
    for kind in options.kinds:
        row = measure(kind, max(1, int(COUNTS[kind] * options.share)), options.memory, options.smaller)
        good &= row.is_good(parse_size(options.memory))
        state = "KILLED" if row.killed else ""
        print(
            f"{kind:<8} {row.wanted:>8,} {row.made:>8,} {row.slope:>10,.0f} {row.charge / MIB:>9.1f}M"
            f" {row.peak / MIB:>9.1f}M {state}"
        )
        for line in [*([row.refusal] if row.refusal else []), *row.again]:
            print(f"         {line}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
