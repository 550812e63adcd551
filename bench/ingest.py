"""Upload with the unmodified qdrant-client inside a memory cgroup, wait until green, search; charge, ledger and disk are
sampled each second.

    upload (columnar | 64 points a request) --> green --> each held-out query once --> recall
    each second:  cgroup charge <= budget     |unaccounted| <= 5 % of it     bytes of the data folder
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import client, dataset  # noqa: E402
from bench.report import Report  # noqa: E402
from harness.cgroup import Sampler, margin  # noqa: E402
from harness.rest import Connection, wait_green  # noqa: E402
from harness.server import Server, mib  # noqa: E402

FORMS = ["columnar", "default"]


def one(form: str, data: dataset.Dataset, args, report: Report) -> None:
    folder = args.data / f"ingest-{form}"
    shutil.rmtree(folder, ignore_errors=True)
    points = len(data.base)
    with Server(folder, args.memory, log=args.data / f"ingest-{form}.log") as server:
        client.create(server, data.dim)

        def measure() -> dict:
            ledger = server.memory()
            # The ledger takes its own reading of the charge, so the two numbers are of one moment.
            return {
                "charge": server.charge(),
                "unaccounted": ledger["unaccounted_bytes"],
                "disk": server.disk_bytes(),
                "accounts": ledger["accounts"],
                "kernel": server.cgroup.stat() if server.cgroup else {},
            }

        sampler = Sampler(measure)
        start = time.monotonic()
        if form == "columnar":
            client.upload_columnar(server, data.base, args.batch)
        else:
            client.upload_default(server, data.base)
        uploaded = time.monotonic() - start
        wait_green(Connection(server.port), client.NAME, args.wait, tick=client.teller(10))
        green = time.monotonic() - start
        samples = sampler.stop()
        recall, seen = client.search(server, data)
        count = Connection(server.port).must("POST", f"/collections/{client.NAME}/points/count", {"exact": True})["count"]
        disk_end, peak = server.disk_bytes(), server.peak()
        kills, hits = (server.cgroup.kills(), server.cgroup.limit_hits()) if server.cgroup else (0, 0)
        alive = server.alive()
    unaccounted = [s["unaccounted"] for s in samples] or [0]
    worst = max(map(abs, unaccounted))
    charge = max((s["charge"] for s in samples), default=0)
    disk_high = max([s["disk"] for s in samples] + [disk_end])
    label = "columnar batches" if form == "columnar" else "64 points a request"
    held = "cgroup " + mib(server.budget + margin(server.budget)) if server.limited else "no cgroup"
    report.row(f"{label}: uploaded {points:,} x {data.dim}, --memory {args.memory}, {held}", f"{uploaded:.0f} s, {points / uploaded:,.0f}/s")
    report.row(f"{label}: from the first request to green", f"{green:.0f} s")
    report.row(f"{label}: points counted", f"{count:,}", f"= {points:,}", count == points)
    report.row(f"{label}: killed", f"{kills} times, limit hit {hits} times", "never", kills == 0 and alive)
    report.row(f"{label}: highest charge (kernel's peak; samples)", f"{mib(peak)}; {mib(charge)}", f"<= {mib(server.budget)}", peak <= server.budget)
    report.row(
        f"{label}: unaccounted, {len(samples)} samples",
        f"{mib(min(unaccounted))} to {mib(max(unaccounted))}, {100 * worst / server.budget:.1f} %",
        "<= 5 % of the budget",
        worst <= 0.05 * server.budget,
        speed=True,
    )
    furthest = max(samples, key=lambda s: abs(s["unaccounted"]), default={"accounts": [], "kernel": {}})
    largest = sorted(furthest["accounts"], key=lambda account: -account["bytes"])[:8]
    report.row(f"{label}: booked at that moment", ", ".join(f"{a['name']} {mib(a['bytes'])}" for a in largest))
    sizes = ("anon", "file", "kernel", "sock", "rss", "cache", "rss_huge", "mapped_file")  # as either version of cgroups has them
    held = {name: furthest["kernel"][name] for name in sizes if name in furthest["kernel"]}
    report.row(f"{label}: held at that moment", ", ".join(f"{name} {mib(size)}" for name, size in held.items()))
    report.row(f"{label}: recall@10, default parameters, {len(data.query):,} queries", f"{recall:.4f}", ">= 0.95", recall >= 0.95)
    report.row(f"{label}: ledger could not be read", f"{sampler.failures} times", "never", sampler.failures == 0)
    report.row(f"{label}: searches, 2 connections", f"{seen.per_second:,.0f}/s, p99 {seen.percentile(99):.1f} ms")
    report.row(f"{label}: disk at the end", f"{disk_end / points:,.0f} B a point", "<= 700", disk_end <= 700 * points, speed=True)
    report.row(f"{label}: disk at its highest", f"{disk_high / points:,.0f} B a point", "<= 1,600", disk_high <= 1600 * points, speed=True)
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--memory", help="the server's budget (default 256MiB, 40MiB with --small)")
    parser.add_argument("--form", choices=[*FORMS, "both"], default="both")
    parser.add_argument("--batch", type=int, default=1_000, help="points of a columnar request")
    parser.add_argument("--wait", type=float, default=3_600, help="seconds until green at most")
    parser.add_argument("--keep", action="store_true", help="leave the server's data in the data folder")
    args = parser.parse_args()
    args.memory = args.memory or ("40MiB" if args.small else "256MiB")
    data = dataset.read(args)
    report = Report(f"ingest: {len(data.base):,} x {data.dim} ({data.name}) under {args.memory}", args)
    for form in FORMS if args.form == "both" else [args.form]:
        one(form, data, args, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
