"""Arrows point down: a crate uses only crates on lower floors, and siblings never meet."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def manifests() -> dict[str, dict]:
    found = {}
    for path in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text())
        found[manifest["package"]["name"]] = manifest
    return found


def floor(manifest: dict) -> int:
    return manifest["package"]["metadata"]["ramekin"]["floor"]


def arrows(crates: dict[str, dict]) -> list[tuple[str, str]]:
    tables = ("dependencies", "dev-dependencies", "build-dependencies")
    return [(name, used) for name, m in crates.items() for table in tables for used in m.get(table, {}) if used in crates]


def test_every_crate_states_its_floor():
    for name, manifest in manifests().items():
        assert floor(manifest) in range(10), name


def test_arrows_point_down():
    crates = manifests()
    wrong = [
        f"{name} (floor {floor(crates[name])}) uses {used} (floor {floor(crates[used])})"
        for name, used in arrows(crates)
        if floor(crates[used]) >= floor(crates[name])
    ]
    assert not wrong, "\n".join(wrong)


def test_shared_floors_know_no_vectors():
    """storage, log, pages and memory stay free of what only vectors need, so that other stores can stand on them."""
    crates = manifests()
    for name in ("ramekin-storage", "ramekin-log", "ramekin-pages", "ramekin-memory", "ramekin-disk"):
        used = {used for source, used in arrows(crates) if source == name}
        assert not used & {"ramekin-ann", "ramekin-vecmath", "ramekin-vectors"}, name
