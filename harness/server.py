"""The server as a process: start on a free port, wait until it is ready, stop it kindly or with kill -9.

    with Server(data, "128MiB") as server:      # --memory 128MiB in its own cgroup where that is permitted
        server.url, server.port, server.memory()
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from harness.cgroup import MIB, Cgroup, margin

REPOSITORY = Path(__file__).resolve().parent.parent


def binary() -> Path:
    """RAMEKIN_BIN, or the newer of what `make build` and `make build-fast` made."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    named = os.environ.get("RAMEKIN_BIN")
    paths = [Path(named)] if named else [target / profile / "ramekin" for profile in ("release", "fast")]
    built = [path for path in paths if path.is_file()]
    if not built:
        sys.exit(f"no server at {' or '.join(map(str, paths))}; run `make build`, or name one in RAMEKIN_BIN")
    return max(built, key=lambda path: path.stat().st_mtime)


def parse_size(text: str) -> int:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    for unit, factor in units.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class StartError(RuntimeError):
    pass


class Server:
    def __init__(
        self,
        data: Path | str,
        memory: str,
        *,
        limited: bool = True,
        port: int | None = None,
        log: Path | str | None = None,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ):
        self.data, self.memory_text = Path(data), memory
        self.budget = parse_size(memory)
        self.port = port or free_port()
        self.log = Path(log) if log else self.data.with_name(self.data.name + ".log")
        self.limited, self.options = limited, options
        self.environment = environment or {}
        self.cgroup: Cgroup | None = None
        self.process: subprocess.Popen | None = None
        self.started_s = 0.0  # from exec to ready

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        serve = [str(binary()), "serve", "--data", str(self.data), "--memory", self.memory_text]
        return [*serve, "--http", f"127.0.0.1:{self.port}", *self.options]

    def start(self, wait_s: float = 60.0, until: str = "/readyz") -> "Server":
        self.data.parent.mkdir(parents=True, exist_ok=True)
        command = self.command()
        if self.limited and self.cgroup is None:
            self.cgroup = Cgroup.make("ramekin", self.budget + margin(self.budget))
        if self.cgroup is not None:
            # The shell joins the group and becomes the server, so nothing of ours is charged to it.
            joined = f"echo $$ > {shlex.quote(str(self.cgroup.folder))}/cgroup.procs && exec {shlex.join(command)}"
            command = ["/bin/sh", "-c", joined]
        start = time.monotonic()
        # RAMEKIN_* are options of the server; only those that were asked for reach it.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAMEKIN_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**own, **self.environment}
            )
        while True:
            if self.process.poll() is not None:
                raise StartError(f"the server ended at start with {self.process.returncode}:\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(f"{self.url}{until}", timeout=2):
                    break
            except OSError:
                if time.monotonic() - start > wait_s:
                    raise StartError(f"the server is not ready after {wait_s:.0f} s:\n{self.log_tail()}") from None
                time.sleep(0.01)
        self.started_s = time.monotonic() - start
        return self

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)

    def memory(self) -> dict:
        return self.get("/memory")["result"]

    def charge(self) -> int:
        """The kernel's charge, or the resident set where there is no cgroup."""
        return self.cgroup.usage() if self.cgroup else self.resident()

    def peak(self) -> int:
        return self.cgroup.peak() if self.cgroup else self.status_kib("VmHWM") << 10

    def resident(self) -> int:
        return self.status_kib("VmRSS") << 10

    def status_kib(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        return 0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def io(self) -> dict[str, int]:
        rows = (line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return {name: int(value) for name, value in rows}

    def disk_bytes(self) -> int:
        """What the data really occupies, without the room that is kept for a full disk; files may go while we look."""
        total = 0
        for folder, _, names in os.walk(self.data):
            for name in set(names) - {"RESERVE"}:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    pass
        return total

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, wait_s: float = 60.0) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.alive():
            self.kill9()
        if self.cgroup is not None:
            self.cgroup.remove()
            self.cgroup = None

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.close()


def mib(count: float) -> str:
    return f"{count / MIB:,.1f} MiB"
