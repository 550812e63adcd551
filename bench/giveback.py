"""Memory comes back: insert, delete everything, wait; the second time round ends where the first did.

    insert 500,000 --> delete 500,000 --> wait until green and quiet --> charge A
    insert 500,000 --> delete 500,000 --> wait until green and quiet --> charge B <= A + 2 MiB
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset, make_synthetic  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.cgroup import MIB  # noqa: E402
from harness.rest import Connection, request_bytes, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

DIM = 100


def settle(server: Server, quiet_s: float, limit_s: float = 300) -> int:
    """The charge once it has not moved by more than 256 KiB for a while."""
    wait_green(Connection(server.port), client.NAME, limit_s)
    start = since = time.monotonic()
    charge = server.charge()
    while time.monotonic() - since < quiet_s and time.monotonic() - start < limit_s:
        time.sleep(0.5)
        now = server.charge()
        if abs(now - charge) > 256 << 10:
            charge, since = now, time.monotonic()
    return server.charge()


def delete_all(server: Server, count: int) -> None:
    rest = Connection(server.port, timeout=600)
    for at in range(0, count, 10_000):
        body = json.dumps({"points": list(range(at, min(at + 10_000, count)))}).encode()
        while (answer := rest.send(request_bytes("POST", f"/collections/{client.NAME}/points/delete?wait=false", body))).status == 429:
            time.sleep(float(answer.headers.get("retry-after", 1)))
        if answer.status != 200:
            raise RuntimeError(f"delete: {answer.status} {answer.error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="the server's budget (default 128MiB, 64MiB with --small)")
    parser.add_argument("--points", type=int, help="how many (default 500,000, 40,000 with --small)")
    parser.add_argument("--quiet", type=float, help="seconds without movement (default 10, 3 with --small)")
    args = parser.parse_args()
    memory = args.memory or ("64MiB" if args.small else "128MiB")
    points = args.points or (40_000 if args.small else 500_000)
    quiet = args.quiet or (3 if args.small else 10)
    report = Report(f"insert and delete {points:,} twice under {memory}", args)
    folder = args.data / "giveback"
    shutil.rmtree(folder, ignore_errors=True)
    vectors = make_synthetic.draw(points, DIM, 11)
    with Server(folder, memory, log=args.data / "giveback.log") as server:
        client.create(server, DIM)
        time.sleep(1)
        report.row("charge before", mib(server.charge()))
        ends = []
        for number in ("first", "second"):
            client.upload_light(server, vectors)
            full = server.charge()
            delete_all(server, points)
            ends.append(settle(server, quiet))
            count = Connection(server.port).must("POST", f"/collections/{client.NAME}/points/count", {"exact": True})["count"]
            disk = mib(server.disk_bytes())
            report.row(f"{number} round", f"{mib(full)} full, {mib(ends[-1])} at the end, disk {disk}, {count} points left", "0 left", count == 0)
        report.row("second end less first end", f"{(ends[1] - ends[0]) / MIB:+.2f} MiB", "<= +2 MiB", ends[1] - ends[0] <= 2 * MIB)
        peak = server.peak()
        kills = server.cgroup.kills() if server.cgroup else 0
        report.row("killed; highest charge", f"{kills} times; {mib(peak)}", f"never; <= {mib(server.budget)}", kills == 0 and peak <= server.budget)
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
