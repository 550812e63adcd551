"""The server as a process that is called `etcd`: it takes etcd's flags, and says when it serves.

    with Member(folder, "--name=a", ...) as member:     # its data and its log lie in the folder
        member.port, member.url, member.log()
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from harness.server import StartError, binary, free_port

READY = "ready to serve client requests"


def link(folder: Path) -> Path:
    """The binary under the name that makes it etcd."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "etcd"
    if not path.is_symlink():
        path.symlink_to(binary().resolve())
    return path


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAMEKIN_", "ETCD_"))}
    return {**own, "RAMEKIN_MEMORY": "64MiB", **more}


def run(folder: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs it to its end."""
    command = [str(link(folder)), *flags]
    return subprocess.run(command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=30)


class Member:
    def __init__(self, folder: Path, *flags: str, scheme: str = "http", listens: bool = True, **variables: str):
        self.folder, self.port, self.variables = folder, free_port(), variables
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        own = (f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}") if listens else ()
        self.command = [str(link(folder)), *own, *flags]
        self.process: subprocess.Popen | None = None

    def start(self, wait_s: float = 30.0) -> "Member":
        said = self.log().count(READY)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=environment(**self.variables), stdout=log, stderr=log
            )
        end = time.monotonic() + wait_s
        while self.log().count(READY) == said:
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise StartError(f"it does not serve:\n{self.log()}")
            time.sleep(0.01)
        return self

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "Member":
        return self.start()

    def __exit__(self, *_) -> None:
        self.close()
