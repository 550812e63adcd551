"""Runs the light load generator (load.c, built with `cc` on first use) on prepared requests."""

import json
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("load.c")


def build(folder: Path) -> Path:
    program = folder / "load"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
    return program


def run(folder: Path, port: int, requests: list[bytes], connections: int, seconds: float, wire: str = "http") -> dict:
    """`seconds` of load, or each request once for 0: elapsed_s, per_second, p50_ms, p99_ms, statuses; each_second and
    slowest_ms by second since `began`, a reading of `time.monotonic`."""
    program = build(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="requests-") as file:
        for request in requests:
            file.write(struct.pack("<I", len(request)) + request)
        file.flush()
        command = [program, str(port), str(connections), str(seconds), wire, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"load generator: {done.stderr.strip()}")
    return json.loads(done.stdout)
