"""What nothing costs: the resident set of an empty server, and of each of 1,000 empty collections.

    start --> resident, charge --> 1,000 x PUT /collections/n --> resident, charge --> difference / 1,000
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.cgroup import MIB  # noqa: E402
from harness.rest import Connection  # noqa: E402
from harness.server import Server, mib  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", default="128MiB", help="the server's budget")
    parser.add_argument("--collections", type=int, help="how many (default 1,000, 200 with --small)")
    args = parser.parse_args()
    many = args.collections or (200 if args.small else 1_000)
    report = Report(f"empty server and {many:,} empty collections under {args.memory}", args)
    folder = args.data / "empty"
    shutil.rmtree(folder, ignore_errors=True)
    with Server(folder, args.memory, log=args.data / "empty.log") as server:
        time.sleep(2)
        before, charge = server.resident(), server.charge()
        report.row("started in", f"{server.started_s * 1e3:.0f} ms")
        report.row("empty server, resident", mib(before), "<= 10 MiB", before <= 10 * MIB)
        report.row("empty server, charge", mib(charge))
        rest = Connection(server.port)
        start = time.monotonic()
        for number in range(many):
            rest.must("PUT", f"/collections/empty-{number}", {"vectors": {"size": 100, "distance": "Cosine"}})
        took = time.monotonic() - start
        time.sleep(2)
        after, charged = server.resident(), server.charge()
        each = max(after - before, charged - charge) / many
        report.row("creating one", f"{1e3 * took / many:.1f} ms")
        report.row("each collection (the larger of resident and charge)", f"{each / 1024:.1f} KiB", "<= 64 KiB", each <= 64 << 10)
        assert len(rest.must("GET", "/collections")["collections"]) == many
        report.row("killed", f"{server.cgroup.kills() if server.cgroup else 0} times", "never", server.alive())
        server.kill9()
        server.start()
        report.row("restart with them, ready after", f"{server.started_s:.2f} s")
        report.row("resident after the restart", mib(server.resident()))
    shutil.rmtree(folder, ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
