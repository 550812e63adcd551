"""What Kubernetes asks of etcd, with kills: nothing is lost, no watch has a gap, and no error is one that etcd would not give.

`bench/peers/etcd/cmd/kube` asks and checks; `python bench/peers_etcd.py` builds it, with Go and a network.
"""

import subprocess

import pytest

from bench import peers_etcd
from harness.member import environment, link
from harness.server import free_port


@pytest.fixture(scope="module")
def programs():
    reason = peers_etcd.missing()
    if reason:
        pytest.skip(f"no client of etcd: {reason}")
    return peers_etcd.build()


def test_the_check_sees_what_is_wrong(programs):
    command = ["nice", peers_etcd.go(), "test", "-p", "1", "-trimpath", "./cmd/kube"]
    done = subprocess.run(command, cwd=peers_etcd.MODULE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


def test_kubernetes_is_served_through_kills(programs, tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    flags = [f"--data-dir={tmp_path}/data", f"--listen-client-urls={url}", f"--advertise-client-urls={url}", "--watch-progress-notify-interval=5s"]
    command = [programs / "kube", "-endpoint", url.removeprefix("http://"), "-seconds", "15", "-kill-every", "5", "--", link(tmp_path), *flags]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
