"""Copies of etcd's door: a snapshot is a database file of etcd, which another folder takes over, and real tools read."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.etcd import Client, error_of
from harness.server import Server, binary, free_port

MEMORY = "64MiB"
REPOSITORY = Path(__file__).resolve().parent.parent


def served(data):
    door = free_port()
    return Server(data, MEMORY, options=("--etcd", f"127.0.0.1:{door}")), door


def save(client, path) -> None:
    """As etcdctl does it: blobs, then their hash."""
    left, parts = None, []
    for message in client.maintenance.Snapshot(client.pb.SnapshotRequest(), timeout=60):
        assert message.version == "3.6.0"
        if left == 0:
            assert message.blob == hashlib.sha256(b"".join(parts)).digest()
        else:
            assert left is None or left == message.remaining_bytes + len(message.blob)
        parts.append(message.blob)
        left = message.remaining_bytes
    data = b"".join(parts)
    assert left == 0 and len(data) % 4096 == 32
    path.write_bytes(data)


def hash_kv(client, revision=0) -> tuple[int, int, int]:
    answer = client.maintenance.HashKV(client.pb.HashKVRequest(revision=revision), timeout=60)
    return answer.hash, answer.compact_revision, answer.hash_revision


def import_etcd(file, data, *more, memory=MEMORY):
    command = [str(binary()), "import", "etcd", str(file), "--data", str(data), "--memory", memory, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def live(client) -> None:
    client.grant(1000, id=7)
    for number in range(200):
        client.put(b"key%03d" % (number % 70), b"v" * (number * 40 % 7000), lease=7 if number % 5 == 0 else 0)
    client.delete(b"key01", b"key02")
    client.put(b"a\0b", b"")
    client.compact(100, physical=True)


def test_hashes_are_those_of_etcd(tmp_path):
    server, door = served(tmp_path / "data")
    with server:
        client = Client(door)
        assert hash_kv(client) == (1084519789, -1, 1)
        client.put(b"a", b"1")
        assert hash_kv(client) == (2587454935, -1, 2)
        client.put(b"a", b"2")
        client.delete(b"a")
        client.txn(success=[client.put_op(b"b", b"x"), client.put_op(b"c", b"y")])
        assert hash_kv(client) == (4096268493, -1, 5)
        for key, value in ((b"k1", b"1"), (b"k2", b"1"), (b"k1", b"2")):
            client.put(key, value)
        client.compact(7, physical=True)
        assert hash_kv(client, 8) == (3974957399, 7, 8)
        assert hash_kv(client, 7) == (3678572252, -1, 7)
        assert error_of(lambda: hash_kv(client, 6)) == ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
        assert error_of(lambda: hash_kv(client, 9))[1] == "etcdserver: mvcc: required revision is a future revision"
        client.close()


def test_a_snapshot_is_taken_over_with_revisions_and_leases(tmp_path):
    first, door = served(tmp_path / "first")
    with first:
        client = Client(door)
        live(client)
        newest = client.range(b"a").header.revision
        reads = [client.range(b"\0", b"\0", revision=revision).kvs for revision in range(100, newest + 1, 9)]
        hashes = [hash_kv(client, revision) for revision in (101, 150, newest)]
        save(client, tmp_path / "copy.db")
        client.close()
    done = import_etcd(tmp_path / "copy.db", tmp_path / "second")
    assert done.returncode == 0, done.stderr
    assert f"up to revision {newest}, compacted up to 100, and 1 leases" in done.stdout
    again = import_etcd(tmp_path / "copy.db", tmp_path / "second")
    assert again.returncode == 5 and "there are keys or leases already" in again.stderr
    second, door = served(tmp_path / "second")
    with second:
        client = Client(door)
        assert [client.range(b"\0", b"\0", revision=revision).kvs for revision in range(100, newest + 1, 9)] == reads
        assert [hash_kv(client, revision) for revision in (101, 150, newest)] == hashes
        assert error_of(lambda: client.range(b"a", revision=99))[0] == "OUT_OF_RANGE"
        watch = client.watch()
        watch.create(b"\0", b"\0", start_revision=150)
        assert watch.next().created and [event.kv.mod_revision for event in watch.events(10)][0] == 150
        watch.close()
        revoked = client.leases.LeaseRevoke(client.pb.LeaseRevokeRequest(ID=7), timeout=60)
        assert revoked.header.revision == newest + 1
        client.close()


def test_what_is_no_whole_copy_is_refused_and_leaves_nothing(tmp_path):
    first, door = served(tmp_path / "first")
    with first:
        client = Client(door)
        live(client)
        save(client, tmp_path / "copy.db")
        client.close()
    whole = (tmp_path / "copy.db").read_bytes()
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 1
    wrong = {"flipped": (bytes(flipped), 7), "other": (b"x" * 8192, 7), "cut": (whole[: len(whole) // 2 // 4096 * 4096], 7)}
    for name, (data, code) in wrong.items():
        (tmp_path / name).write_bytes(data)
        done = import_etcd(tmp_path / name, tmp_path / "second")
        assert done.returncode == code, (name, done.stderr)
    assert import_etcd(tmp_path / "none", tmp_path / "second").returncode == 2
    # A database without a hash, as a member has it, is taken over too.
    (tmp_path / "db").write_bytes(whole[:-32])
    done = import_etcd(tmp_path / "db", tmp_path / "second")
    assert done.returncode == 0 and "carries no hash" in done.stdout


def test_a_client_that_goes_leaves_no_file_behind(tmp_path):
    server, door = served(tmp_path / "data")
    with server:
        client = Client(door)
        for number in range(300):
            client.put(b"key%d" % number, os.urandom(120_000))
        stream = client.maintenance.Snapshot(client.pb.SnapshotRequest(), timeout=60)
        next(stream)
        work = tmp_path / "data" / "versions" / "temp"
        assert len(list(work.iterdir())) == 1
        stream.cancel()
        hash_kv(client)
        for _ in range(100):
            if not list(work.iterdir()):
                break
            hash_kv(client)
        assert not list(work.iterdir())
        client.close()


def tool(name: str) -> str:
    """A program of etcd, of which the bench's peers have some; or one in the search path."""
    found = os.environ.get(name.upper()) or shutil.which(name)
    peers = REPOSITORY / "bench" / "peers"
    found = found or next((str(path) for path in sorted(peers.rglob(name)) if path.is_file() and os.access(path, os.X_OK)), None)
    return found or pytest.skip(f"there is no {name}; name one in {name.upper()}")


def test_tools_of_etcd_read_a_snapshot(tmp_path):
    etcdutl = tool("etcdutl")
    server, door = served(tmp_path / "data")
    with server:
        client = Client(door)
        live(client)
        keys = client.range(b"\0", b"\0", count_only=True).count
        newest = client.range(b"a").header.revision
        save(client, tmp_path / "copy.db")
        client.close()
    run = dict(capture_output=True, text=True, timeout=60, check=True)
    status = subprocess.run([etcdutl, "snapshot", "status", tmp_path / "copy.db", "-w", "fields"], **run).stdout
    assert f'"Revision" : {newest}' in status and f'"Keys" : {keys}' in status
    subprocess.run([etcdutl, "snapshot", "restore", tmp_path / "copy.db", "--data-dir", tmp_path / "etcd"], **run)
    # And back: the database of the member that it made.
    done = import_etcd(tmp_path / "etcd" / "member" / "snap" / "db", tmp_path / "second")
    assert done.returncode == 0 and f"up to revision {newest}, compacted up to 100, and 1 leases" in done.stdout, done.stderr
