"""`make demo-versions` in small: it ends well and says what it found."""

import subprocess
import sys

import pytest

from harness.server import REPOSITORY


@pytest.mark.parametrize("order", [[], ["--scattered"]])
def test_every_key_is_found_again(tmp_path, order):
    command = [sys.executable, "demo/versions.py", "--data", str(tmp_path / "demo"), "--keys", "8000", *order]
    told = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "compare: 8,000 of 8,000 keys" in told.stdout and "each as it was" in told.stdout
    assert "has been compacted" in told.stdout and "NOT held" not in told.stdout
    came = next(line for line in told.stdout.splitlines() if line.startswith("watch: ")).split()
    assert came[1] == came[3], came
