"""Speed at every budget: requests a second, recall and reads of one folder of data, from everything resident to 24 MiB.

    upload once (ramekin lab minram, without and with payloads)
    rounds     hnswlib | 1GiB | hnswlib | 127MiB codes alone | 127MiB | 56MiB | 24MiB | 127MiB with payloads
    find       the least budget of 24 MiB at most that still answers 50 requests/s

`lab minram` measures: a cold start in a cgroup, each held-out query once over REST, reads counted by the kernel; each round
also measures what the disk does by itself. Ratios are of one round. Where the default parameters miss the recall that a row
wants, `hnsw_ef` is raised until it is reached. hnswlib (M 16, ef_construction 100, ef 64) is called once for all queries, on
one thread.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import dataset, peers  # noqa: E402
from bench.report import Report, spread  # noqa: E402
from harness.server import binary, mib, parse_size  # noqa: E402

EFS = [None, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512]  # None: what the server takes by itself
EFS_SMALL = [None, 128, 512]
HNSW_EF = 64
SLOW_DISK_IOPS = 45_000
FIND = ("8MiB", "24MiB")


class Lab:
    """`ramekin lab minram` on one folder: the first call uploads, those after it take what is there."""

    def __init__(self, data: dataset.Dataset, args, name: str, *upload: str):
        self.out = args.data / "speed" / name
        self.options = ["--queries", str(len(data.query)), "--page-cache", "files", "--connections", str(args.connections), *upload]
        for part in ("base", "query", "truth"):
            file = args.data / f"{args.set}_{part}.npy"
            if args.small or args.rows:
                file = args.data / "speed" / f"{part}.npy"
                np.save(file, getattr(data, part))
            self.options += [f"--{part}", str(file)]
        if args.small:
            self.options += ["--upload-memory", "32MiB"]  # with more, so few points need no index
        if not args.reuse:
            shutil.rmtree(self.out, ignore_errors=True)
        self.held = args.reuse and (self.out / "uploaded.json").exists()

    def run(self, *options: str) -> dict:
        reuse = ["--reuse"] if self.held else []
        command = [str(binary()), "lab", "minram", "--out", str(self.out), "--json", *self.options, *options, *reuse]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"lab minram ended with {done.returncode}")
        self.held = True
        return json.loads(done.stdout)


@dataclass
class Row:
    """One row of the table, and what each round saw of it."""

    label: str
    lab: Lab
    memory: str
    recall_wanted: float = 0.95
    options: list[str] = field(default_factory=list)
    reads_disk: bool = True
    efs: list[int | None] = field(default_factory=lambda: list(EFS))  # those that are left to try, in use the first
    seen: list[dict] = field(default_factory=list)
    iops: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def measure(self, small: bool) -> None:
        disk = ["0"] if not self.reads_disk else ["16MiB", "--disk-seconds", "0.1"] if small else ["256MiB"]
        while True:
            told = self.lab.run("--memory", self.memory, "--repeats", "1", "--disk-file", *disk, *self.options, *asked(self.efs[0]))
            one = told["limits"][0]
            self.failed += one["failed"] + one["not_green"] + ([f"{one['refused']} queries were not answered"] if one["refused"] else [])
            if one["recall"] is None or one["recall"]["median"] >= self.recall_wanted or len(self.efs) == 1:
                break
            self.efs.pop(0)
        if one["recall"] is not None:
            self.seen.append({name: value["median"] for name, value in one.items() if isinstance(value, dict)})
            self.iops += [rate["reads_per_second"] for rate in (told["disk"] or {"rates": []})["rates"] if rate["depth"] == 64]

    def values(self, name: str) -> list[float]:
        """One figure, a value a round; empty if it was not counted here."""
        return [one[name] for one in self.seen if name in one]

    @property
    def rates(self) -> list[float]:
        return self.values("requests_per_second")


def asked(ef: int | None) -> list[str]:
    return [] if ef is None else ["--ef", str(ef)]


def over(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=False)]


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def goal(report: Report, what: str, values: list[float], least: float, digits: int = 2, unit: str = "x") -> None:
    figure = f"{spread(values, digits)}{unit}" if values else "nothing measured"
    report.row(what, figure, f">= {least:g}{unit}", middle(values) >= least, speed=True)


def every(row: Row, report: Report, rounds: int) -> None:
    """What is said of each row."""
    budget = parse_size(row.memory)
    with_ef = f"hnsw_ef {row.efs[0]}" if row.efs[0] else "default parameters"
    answered = not row.failed and len(row.seen) == rounds
    report.row(f"{row.label}: every query answered", row.failed[0] if row.failed else f"{len(row.seen)} of {rounds} runs", "all", answered)
    if not row.seen:
        return
    recall = middle(row.values("recall"))
    report.row(f"{row.label}: recall@10, {with_ef}", f"{recall:.4f}", f">= {row.recall_wanted}", recall >= row.recall_wanted)
    peak = max(row.values("peak_bytes"), default=0)
    report.row(f"{row.label}: highest charge", mib(peak), f"<= {mib(budget)}", peak <= budget)
    times = f"p50 {middle(row.values('p50_ms')):.2f} ms, p99 {middle(row.values('p99_ms')):.1f} ms"
    report.row(f"{row.label}: requests/s", f"{spread(row.rates)}, {times}")
    used = [row.values(name) for name in ("cpu_us_per_query", "load_cpu_us_per_query")]
    if all(used):
        report.row(f"{row.label}: processor time a query", f"server {spread(used[0])} us, load {spread(used[1])} us")


def from_disk(row: Row, report: Report, reads_most: float | None) -> None:
    """Reads a query, and how much of what the disk can do they use."""
    reads = row.values("reads_per_query")
    if not reads:
        report.row(f"{row.label}: reads a query", "not counted here")
        return
    if reads_most is None or not middle(reads):
        report.row(f"{row.label}: reads a query", spread(reads, 1))
        return
    report.row(f"{row.label}: reads a query", spread(reads, 1), f"<= {reads_most:g}", middle(reads) <= reads_most, speed=True)
    possible = over(row.iops, reads)
    report.row(f"{row.label}: 4 KiB reads/s of the disk, depth 64", f"{spread(row.iops)}, enough for {spread(possible)} requests/s")
    goal(report, f"{row.label}: of what the disk allows", over(row.rates, possible), 0.8)


def find(lab: Lab, ef: int | None, args, report: Report) -> None:
    low, high = FIND
    serving = ["--find", f"{low},{high}", "--step", args.step, "--min-rate", "50", "--min-recall", "0.95"]
    told = lab.run(*serving, "--seconds", "10", "--disk-file", "0", *asked(ef))["least"]
    least = told["least_memory_bytes"]
    refused = [trial for trial in told["tried"] if not trial["serves"]]
    below = max(refused, key=lambda trial: trial["memory_bytes"], default=None)
    figure = mib(least) if least else f"none up to {high}"
    if below:
        why = below["figures"] if "requests/s" in below["figures"] else "does not start"
        figure += f"; {mib(below['memory_bytes'])}: {why}"
    report.row("least --memory for 50 requests/s at recall .95", figure, f"<= {high}", least is not None, speed=True)


@dataclass
class Table:
    """The rows, in the order in which they are measured."""

    resident: Row
    codes: Row
    most: Row
    half: Row
    least: Row
    payloads: Row
    hnsw: list[tuple[float, float]] = field(default_factory=list)  # recall and rate, before and after `resident` in each round

    def rows(self) -> list[Row]:
        return [self.resident, self.codes, self.most, self.half, self.least, self.payloads]

    def measure(self, peer: peers.Hnswlib | None, small: bool) -> None:
        """One round."""
        self.hnsw += [peer.measure(HNSW_EF)] if peer else []
        self.resident.measure(small)
        self.hnsw += [peer.measure(HNSW_EF)] if peer else []
        for row in self.rows()[1:]:
            row.measure(small)

    def tell(self, args, report: Report) -> None:
        resident, least = self.resident, self.least
        every(resident, report, args.rounds)
        report.row("rate of the empty handler", f"{spread(resident.values('empty_per_second') or [0])} requests/s")
        if self.hnsw:
            rates = [rate for _, rate in self.hnsw]
            beside = [(before + after) / 2 for before, after in zip(rates[::2], rates[1::2], strict=True)]
            report.row(f"hnswlib, ef {HNSW_EF}, one thread, one call", f"{spread(rates)} queries/s, recall {self.hnsw[0][0]:.4f}")
            goal(report, "everything resident / hnswlib", over(resident.rates, beside), 1.12)
        every(self.codes, report, args.rounds)
        goal(report, f"{self.codes.label}: of everything resident", over(self.codes.rates, resident.rates), 0.9)
        for row, reads, share in ((self.most, 11, 0.25), (self.half, 22, 0.12)):
            every(row, report, args.rounds)
            from_disk(row, report, reads)
            goal(report, f"{row.label}: of everything resident", over(row.rates, resident.rates), share)
        every(least, report, args.rounds)
        from_disk(least, report, None)
        scaled = [rate * min(1, SLOW_DISK_IOPS / iops) for rate, iops in zip(least.rates, least.iops, strict=False)]
        disks = f"on a disk of {SLOW_DISK_IOPS:,} reads/s (this one: {spread(least.iops or [0])})"
        goal(report, f"{least.label}: {disks}", scaled, 300, digits=0, unit="/s")
        every(self.payloads, report, args.rounds)
        goal(report, f"{self.payloads.label}: of the same without", over(self.payloads.rates, self.most.rates), 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    dataset.arguments(parser)
    parser.add_argument("--rounds", type=int, help="(default 3, 1 with --small)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--payload-bytes", type=int, default=200)
    parser.add_argument("--step", help="how exactly the least budget is found (default 1MiB, 4MiB with --small)")
    parser.add_argument("--reuse", action="store_true", help="take the uploads that an earlier run left")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.small else 3)
    args.step = args.step or ("4MiB" if args.small else "1MiB")
    data = dataset.read(args)
    (args.data / "speed").mkdir(parents=True, exist_ok=True)
    report = Report(f"speed at every budget: {len(data.base):,} x {data.dim} ({data.name}), {args.connections} connections", args)
    plain = Lab(data, args, "plain")
    loaded = Lab(data, args, "payload", "--payload-bytes", str(args.payload_bytes), "--with-payload")
    table = Table(
        resident=Row("everything resident", plain, "1GiB", recall_wanted=0.96, reads_disk=False),
        codes=Row("127MiB, rescore false", plain, "127MiB", options=["--rescore", "false"], reads_disk=False),
        most=Row("127MiB, exact scores", plain, "127MiB"),
        half=Row("56MiB, exact scores", plain, "56MiB"),
        least=Row("24MiB, exact scores", plain, "24MiB"),
        payloads=Row(f"127MiB, {args.payload_bytes} bytes of payload", loaded, "127MiB", reads_disk=False),
    )
    for row in table.rows() if args.small else []:
        row.efs = list(EFS_SMALL)
    peer = peers.Hnswlib(data, 2) if not args.small or peers.installed("hnswlib") else None
    for _ in range(args.rounds):
        table.measure(peer, args.small)
    table.tell(args, report)
    find(plain, table.least.efs[0], args, report)
    if args.small:
        shutil.rmtree(args.data / "speed", ignore_errors=True)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
