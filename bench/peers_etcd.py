"""A real etcd as a server of the harness, and the programs that drive it: built once from `bench/peers/etcd`.

    go.mod, go.sum, cmd/ ─► go build ─► $BENCH_DIR/peers/etcd-<version>-<digest>/{etcd, etcdctl, etcdutl, drive, differ, concurrency, kube}

It needs Go and its module proxy; `missing` says what is not there.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.server import REPOSITORY, Server, free_port  # noqa: E402

MODULE = REPOSITORY / "bench" / "peers" / "etcd"


def go() -> str | None:
    return shutil.which("go") or next((path for path in ["/usr/local/go/bin/go"] if os.access(path, os.X_OK)), None)


def version() -> str:
    return re.search(r"go\.etcd\.io/etcd/server/v3 v(\S+)", (MODULE / "go.mod").read_text()).group(1)


def folder() -> Path:
    sources = [MODULE / "go.mod", MODULE / "go.sum", *sorted(MODULE.rglob("*.go"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    base = Path(os.environ.get("BENCH_DIR") or REPOSITORY / "target")
    return base.resolve() / "peers" / f"etcd-{version()}-{digest}"


def build() -> Path:
    """The folder of the programs. Fails with Go's words where they cannot be built."""
    made = folder()
    if (made / "etcd").exists():
        return made
    tool = go()
    if tool is None:
        raise RuntimeError("Go is not installed: https://go.dev/dl, or `golang` of a distribution of 2026")
    part = made.with_name(f"{made.name}.{os.getpid()}")
    command = ["nice", tool, "build", "-p", "2", "-trimpath", "-o", f"{part}/", "./cmd/..."]
    done = subprocess.run(command, cwd=MODULE, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(part, ignore_errors=True)
        raise RuntimeError(f"etcd cannot be built: {done.stderr.strip()[-2000:]}")
    shutil.rmtree(made, ignore_errors=True)
    part.rename(made)
    return made


def missing() -> str | None:
    """Why there is no etcd to use; None: it was built before. To build it takes minutes and a network: no test does so by itself."""
    return None if (folder() / "etcd").exists() else "it is not built: python bench/peers_etcd.py"


def drive(port: int, command: str, **options) -> dict:
    """What the generator of load found; an option `key_length=5` is its flag -key-length."""
    flags = [f"-{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    asked = [build() / "drive", command, f"-endpoint=127.0.0.1:{port}", *flags]
    done = subprocess.run(list(map(str, asked)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"drive {command}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


class Etcd(Server):
    """A cluster of one with etcd's defaults, but for its addresses; it syncs as it does for everybody."""

    def __init__(self, data: Path, *, options: tuple[str, ...] = ()):
        super().__init__(data, "256GiB", options=options)
        self.peer_port = free_port()

    @property
    def door(self) -> int:
        return self.port

    def command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self.peer_port))
        return [
            str(build() / "etcd"), "--data-dir", str(self.data), "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *self.options,
        ]  # fmt: skip

    def start(self, wait_s: float = 60.0, until: str = "/health") -> "Etcd":
        super().start(wait_s, until)
        return self


class Ramekin(Server):
    """Ramekin with etcd's door."""

    def __init__(self, data: Path, memory: str, *, options: tuple[str, ...] = ()):
        self.door = free_port()
        super().__init__(data, memory, options=("--etcd", f"127.0.0.1:{self.door}", *options))


if __name__ == "__main__":
    print(build())
