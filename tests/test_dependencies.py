"""What we depend on is what deny.toml allows: licences, banned crates, double versions, sources. And each dependency has a user.

    deny.toml ──┬── cargo metadata: licences                  (why no cargo-deny: docs/decisions/0019-...)
                └── Cargo.lock: versions, sources, names
"""

import json
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DENY = tomllib.loads((ROOT / "deny.toml").read_text())
LOCK = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """An SPDX expression: of OR one side must be allowed, of AND both; `A/B` is an old way to write OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either() -> bool:
        found = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            found = both() or found
        return found

    def both() -> bool:
        found = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found = one() and found
        return found

    def one() -> bool:
        name = tokens.pop(0)
        if name == "(":
            found = either()
            assert tokens.pop(0) == ")"
            return found
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            name += " WITH " + tokens.pop(0)
        return name in allowed

    found = either()
    assert not tokens, f"'{expression}' goes on at {tokens}"
    return found


@pytest.mark.parametrize(
    "expression, allowed",
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0/MIT", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND ISC", True),
        ("GPL-3.0 OR MIT AND GPL-2.0", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
    ],
)
def test_expressions_are_read(expression, allowed):
    assert is_allowed(expression, {"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"}) == allowed


def test_licences():
    host = re.search(r"^host: (\S+)", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M)
    command = ["cargo", "metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", host.group(1)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    packages = json.loads(told.stdout)["packages"]
    allowed = set(DENY["licenses"]["allow"])
    wrong = [f"{p['name']} {p['version']}: {p['license']}" for p in packages if not is_allowed(p["license"] or "none", allowed)]
    assert not wrong, "these licences are not among those of deny.toml:\n" + "\n".join(wrong)
    assert len(packages) > 100


def test_nothing_banned_is_there():
    banned = {entry["name"]: entry["reason"] for entry in DENY["bans"]["deny"]}
    found = [f"{p['name']}: {banned[p['name']]}" for p in LOCK if p["name"] in banned]
    assert not found, "\n".join(found)


def test_one_version_of_each_crate():
    skipped = {entry["name"] for entry in DENY["bans"]["skip"]}
    versions = defaultdict(set)
    for package in LOCK:
        versions[package["name"]].add(package["version"])
    double = {name: sorted(all_of) for name, all_of in versions.items() if len(all_of) > 1}
    # As cargo-deny does it: what is skipped does not count, and one version may be left.
    for name, all_of in double.items():
        left = [version for version in all_of if f"{name}@{version}" not in skipped]
        assert len(left) <= 1, f"{name} is there in versions {', '.join(all_of)}; take one, or say in deny.toml why not"
    there = {f"{name}@{version}" for name, all_of in double.items() for version in all_of}
    assert skipped <= there, f"no longer needed in deny.toml: {sorted(skipped - there)}"


def test_all_comes_from_the_registry():
    allowed = {f"registry+{url}" for url in DENY["sources"]["allow-registry"]}
    wrong = [f"{p['name']}: {p['source']}" for p in LOCK if p.get("source") and p["source"] not in allowed]
    assert not wrong, "\n".join(wrong)
    own = {p["name"] for p in LOCK if not p.get("source")}
    assert all(name.startswith("ramekin-") for name in own), own


def manifests() -> dict[Path, dict]:
    return {path: tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("crates/*/Cargo.toml"))}


def test_every_dependency_has_a_user():
    unused = []
    for path, manifest in manifests().items():
        places = {"dependencies": ["src"], "dev-dependencies": ["src", "tests", "examples", "benches"], "build-dependencies": ["build.rs"]}
        for table, folders in places.items():
            files = [file for folder in folders for file in [path.parent / folder, *(path.parent / folder).rglob("*.rs")] if file.suffix == ".rs" and file.exists()]
            text = "\n".join(file.read_text() for file in files)
            for name in manifest.get(table, {}):
                if not re.search(rf"\b{name.replace('-', '_')}\b", text):
                    unused.append(f"{path.parent.name}: {name} ({table})")
    assert not unused, "nobody uses:\n" + "\n".join(unused)


def test_every_dependency_of_the_workspace_is_one_of_a_crate():
    asked = {name for manifest in manifests().values() for table in ("dependencies", "dev-dependencies", "build-dependencies") for name in manifest.get(table, {})}
    known = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    of_nobody = {name for name in known if name not in asked and not name.startswith("ramekin-")}
    assert not of_nobody, of_nobody
    for name, manifest in manifests().items():
        for table in ("dependencies", "dev-dependencies"):
            loose = [dep for dep, said in manifest.get(table, {}).items() if not (isinstance(said, dict) and said.get("workspace"))]
            assert not loose, f"{name}: take {loose} from the workspace, so that there is one version"
