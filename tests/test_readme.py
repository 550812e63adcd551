"""The README's commands work as written: its blocks that open with ```sh run, one after the other in one shell."""

import os
import re
import subprocess
from pathlib import Path

from harness.server import binary, free_port

ROOT = Path(__file__).resolve().parent.parent


def blocks() -> list[str]:
    return re.findall(r"^```sh run\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)


def test_the_commands_of_the_readme(tmp_path):
    assert len(blocks()) >= 3
    # A folder that looks like the repository after a build: what the commands write stays out of the real one.
    (tmp_path / "target/release").mkdir(parents=True)
    (tmp_path / "target/release/ramekin").symlink_to(binary())
    script = "\n".join(blocks()).replace("make build\n", "").replace("6333", str(free_port()))
    shell = ["bash", "-c", f"set -euo pipefail; set -m\n{script}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAMEKIN_")}
    ended = subprocess.run(
        shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_links_and_make_targets_exist():
    text = (ROOT / "README.md").read_text() + (ROOT / "bench/README.md").read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_every_option_of_the_table_is_an_option():
    shown = subprocess.run([binary(), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    table = (ROOT / "README.md").read_text().split("## Options")[1]
    for option in re.findall(r"`(--[a-z-]+)", table.split("\n## ")[0]):
        assert option in shown, option
    for option in set(re.findall(r"^\s+(--[a-z-]+)", shown, re.M)) - {"--help", "--config"}:
        assert option in table, f"{option} is missing in the README"
