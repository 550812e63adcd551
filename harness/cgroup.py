"""A memory cgroup of its own for one process, version 1 or 2.

    server started with --memory B
    cgroup limit       B + max(8 MiB, B/16)      beyond it the kernel kills
    charge, each second          <= B            what the server promises

`Cgroup.make` answers None where cgroups may not be made (most containers); callers then say so and measure the
resident set instead of limiting it.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
ROOT = Path("/sys/fs/cgroup")


def margin(budget: int) -> int:
    return max(8 * MIB, budget // 16)


@dataclass(frozen=True)
class Names:
    """Files of one cgroup version."""

    limit: str
    usage: str
    peak: str


V1 = Names("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes")
V2 = Names("memory.max", "memory.current", "memory.peak")


def own_groups() -> list[tuple[Path, Names]]:
    """Folders under which a group could be made, with the version's file names; nearest first."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top, names = ROOT / "memory", V1
        elif controllers == "":
            top, names = (ROOT / "unified" if (ROOT / "unified").is_dir() else ROOT), V2
        else:
            continue
        found += [(top / path.lstrip("/"), names), (top, names)]
    return found


def delegate(folder: Path) -> None:
    """Version 2 lets a group have children with limits only if it holds no process itself: ours step aside."""
    control = folder / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        control.write_text("+memory")
    except OSError:
        aside = folder / "ramekin-runner"
        aside.mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            (aside / "cgroup.procs").write_text(pid)
        control.write_text("+memory")


class Cgroup:
    def __init__(self, folder: Path, names: Names):
        self.folder, self.names = folder, names

    @classmethod
    def make(cls, name: str, limit: int) -> "Cgroup | None":
        for parent, names in own_groups():
            folder = parent / f"{name}-{os.getpid()}-{time.monotonic_ns() // 1000 % 10**9}"
            try:
                if names is V2:
                    delegate(parent)
                folder.mkdir()
                (folder / names.limit).write_text(str(limit))
                swap = folder / ("memory.swap.max" if names is V2 else "memory.swappiness")
                if swap.exists():
                    swap.write_text("0")  # memory that went to swap would not be counted
                return cls(folder, names)
            except OSError:
                try:
                    folder.rmdir()
                except OSError:
                    pass
        return None

    def number(self, name: str) -> int:
        return int((self.folder / name).read_text().split()[0])

    def usage(self) -> int:
        return self.number(self.names.usage)

    def peak(self) -> int:
        return self.number(self.names.peak)

    def fields(self, name: str) -> dict[str, int]:
        rows = (line.split() for line in (self.folder / name).read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    def kills(self) -> int:
        return self.fields("memory.events" if self.names is V2 else "memory.oom_control").get("oom_kill", 0)

    def limit_hits(self) -> int:
        """How often the charge ran into the limit; not an error where the kernel could still reclaim."""
        return self.fields("memory.events").get("max", 0) if self.names is V2 else self.number("memory.failcnt")

    def stat(self) -> dict[str, int]:
        return self.fields("memory.stat")

    def remove(self) -> None:
        for _ in range(50):
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)  # the process has ended, the kernel still takes it apart


class Sampler:
    """Calls `measure` each `every` seconds on a thread until stopped; keeps (seconds, value)."""

    def __init__(self, measure, every: float = 1.0):
        self.samples: list[tuple[float, object]] = []
        self.failures = 0
        self._measure, self._every, self._stop = measure, every, threading.Event()
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.samples.append((time.monotonic() - self._start, self._measure()))
            except Exception:  # noqa: BLE001 - a server that restarts or refuses is what some runs are about
                self.failures += 1

    def stop(self) -> list:
        self._stop.set()
        self._thread.join()
        return [value for _, value in self.samples]
