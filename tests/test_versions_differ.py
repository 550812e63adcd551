"""A real etcd and Ramekin get the same drawn requests: code, text and whole answer of each must be equal.

`bench/peers/etcd/cmd/differ` draws and compares; `python bench/peers_etcd.py` builds it, with Go and a network.
"""

import subprocess

import pytest

from bench import peers_etcd

REQUESTS = 2500


@pytest.fixture(scope="module")
def programs():
    reason = peers_etcd.missing()
    if reason:
        pytest.skip(f"no etcd to compare with: {reason}")
    return peers_etcd.build()


@pytest.fixture
def both(programs, tmp_path):
    with peers_etcd.Etcd(tmp_path / "etcd", options=("--bcrypt-cost", "4")) as etcd, peers_etcd.Ramekin(tmp_path / "ramekin", "64MiB") as ramekin:
        yield etcd, ramekin
        assert ramekin.peak() <= ramekin.budget


def differ(programs, etcd, ramekin, *options: str) -> None:
    command = [programs / "differ", "-etcd", f"127.0.0.1:{etcd.door}", "-peer", f"127.0.0.1:{ramekin.door}", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


@pytest.mark.parametrize("seed", ["1", "2"])
def test_drawn_requests_are_answered_alike(programs, both, seed):
    differ(programs, *both, "-requests", str(REQUESTS), "-seed", seed)


def test_users_roles_and_permissions_are_those_of_etcd(programs, both):
    # Who is nobody may send a transaction of nothing to etcd.
    differ(programs, *both, "-auth", "-requests", str(REQUESTS), "-allow", r"^KV/Txn\{\} by (nobody|liar)")
