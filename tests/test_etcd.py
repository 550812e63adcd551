"""etcd's door, as its clients see it: keys with versions, transactions, watches, leases, and what a kill leaves."""

import json
import random
import re
import threading
import time
import urllib.error
import urllib.request

import pytest

from harness.cgroup import Sampler
from harness.etcd import Client, error_of
from harness.server import Server, free_port

PREFIX = "etcdserver: "


@pytest.fixture
def served(tmp_path):
    door = free_port()
    with Server(tmp_path / "data", "64MiB", options=("--etcd", f"127.0.0.1:{door}")) as server:
        client = Client(door)
        yield client, server, door
        client.close()


def test_keys_have_versions_and_old_ones_can_be_read(served):
    client, _, _ = served
    assert client.range(b"a").header.revision == 1
    first = client.put(b"a", b"1")
    assert (first.header.revision, first.header.raft_term) == (2, 2) and first.header.cluster_id and first.header.member_id
    assert client.put(b"a", b"2", prev_kv=True).prev_kv.value == b"1"
    client.put(b"b", b"x" * 5000)
    (kv,) = client.range(b"a").kvs
    assert (kv.create_revision, kv.mod_revision, kv.version, kv.value) == (2, 3, 2, b"2")
    assert client.range(b"a", revision=2).kvs[0].value == b"1"
    found = client.range(b"a", b"\0", limit=1)
    assert (len(found.kvs), found.more, found.count, found.header.revision) == (1, True, 2, 4)
    assert client.range(b"b").kvs[0].value == b"x" * 5000
    assert client.range(b"a", b"c", count_only=True).count == 2
    descending = client.range(b"a", b"c", sort_order="DESCEND", sort_target="MOD")
    assert [kv.key for kv in descending.kvs] == [b"b", b"a"]
    deleted = client.delete(b"a", b"b", prev_kv=True)
    assert (deleted.deleted, deleted.header.revision, deleted.prev_kvs[0].value) == (1, 5, b"2")
    assert client.delete(b"a").header.revision == 5
    assert client.range(b"a", revision=4).kvs[0].version == 2 and not client.range(b"a").kvs


def test_refusals_have_the_codes_and_texts_of_etcd(served):
    client, _, _ = served
    client.put(b"a", b"1")
    client.compact(2)
    op = client.put_op(b"k", b"")
    wrong = [
        (lambda: client.put(b"", b""), "INVALID_ARGUMENT", "key is not provided"),
        (lambda: client.range(b""), "INVALID_ARGUMENT", "key is not provided"),
        (lambda: client.put(b"k", b"v", ignore_value=True), "INVALID_ARGUMENT", "value is provided"),
        (lambda: client.put(b"k", b"", ignore_value=True), "INVALID_ARGUMENT", "key not found"),
        (lambda: client.put(b"k", b"", lease=5), "NOT_FOUND", "requested lease not found"),
        (lambda: client.range(b"a", revision=3), "OUT_OF_RANGE", "mvcc: required revision is a future revision"),
        (lambda: client.range(b"a", revision=1), "OUT_OF_RANGE", "mvcc: required revision has been compacted"),
        (lambda: client.compact(2), "OUT_OF_RANGE", "mvcc: required revision has been compacted"),
        (lambda: client.range(b"a", sort_order=9), "INVALID_ARGUMENT", "invalid sort option"),
        (lambda: client.txn(success=[op, op]), "INVALID_ARGUMENT", "duplicate key given in txn request"),
        (lambda: client.txn(success=[op] * 129), "INVALID_ARGUMENT", "too many operations in txn request"),
        (lambda: client.txn(success=[client.pb.RequestOp()]), "INVALID_ARGUMENT", "key not found"),
        (lambda: client.grant(9_000_000_001), "OUT_OF_RANGE", "too large lease TTL"),
        (lambda: client.put(b"k", b"v" * 1_600_000), "INVALID_ARGUMENT", "request is too large"),
    ]
    for call, code, text in wrong:
        assert error_of(call) == (code, PREFIX + text)
    code, text = error_of(lambda: client.put(b"k", b"v" * 2_200_000))
    assert (code, text) == ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (2200008 vs. 2097152)")
    assert client.range(b"a").header.revision == 2


def test_a_stream_of_a_range_is_the_range_at_one_revision(served):
    client, _, _ = served
    for number in range(300):
        client.put(b"s%03d" % number, b"x" * (number % 7))
    for limit in (0, 7, 10, 299, 300, 400):
        whole = client.range(b"s", b"t", limit=limit)
        stream = client.kv.RangeStream(client.pb.RangeRequest(key=b"s", range_end=b"t", limit=limit))
        first = next(stream)
        client.put(b"s000", b"")
        chunks = [first.range_response, *(chunk.range_response for chunk in stream)]
        assert [kv for chunk in chunks for kv in chunk.kvs] == list(whole.kvs)
        assert all(chunk.header.revision == chunk.count == 0 and not chunk.more for chunk in chunks[:-1])
        last = chunks[-1]
        assert (last.count, last.more, last.header.revision) == (300, whole.more, whole.header.revision)
    (counted,) = client.kv.RangeStream(client.pb.RangeRequest(key=b"s", range_end=b"t", count_only=True))
    assert counted.range_response.count == 300
    sorted_by = client.pb.RangeRequest(key=b"s", range_end=b"t", sort_target="MOD", sort_order="ASCEND")
    assert error_of(lambda: list(client.kv.RangeStream(sorted_by))) == ("UNIMPLEMENTED", "RangeStream does not support custom sort orders")
    # Without an order each chunk is sorted by itself.
    unsorted = client.pb.RangeRequest(key=b"s", range_end=b"t", sort_target="VALUE")
    chunks = [chunk.range_response.kvs for chunk in client.kv.RangeStream(unsorted)]
    assert sorted(kv.key for kvs in chunks for kv in kvs) == [b"s%03d" % number for number in range(300)]
    for kvs in chunks:
        assert [kv.value for kv in kvs] == sorted(kv.value for kv in kvs)
    old = client.pb.RangeRequest(key=b"s", revision=1000)
    assert error_of(lambda: list(client.kv.RangeStream(old)))[0] == "OUT_OF_RANGE"


def test_a_delete_of_many_keys_is_one_revision(served):
    client, _, _ = served
    for number in range(700):
        client.put(b"d%04d" % number, b"")
    watch = client.watch()
    watch.create(b"d", b"e")
    assert watch.next().created
    deleted = client.delete(b"d0050", b"e")
    assert (deleted.deleted, deleted.header.revision) == (650, 702)
    assert {event.kv.mod_revision for event in watch.events(650)} == {702}
    watch.close()
    assert client.range(b"d", b"e", count_only=True).count == 50
    assert client.range(b"d", b"e", count_only=True, revision=701).count == 700


def test_a_transaction_is_one_revision_and_sees_what_it_wrote(served):
    client, _, _ = served
    pb = client.pb
    is_new = pb.Compare(key=b"lock", target="CREATE", result="EQUAL", create_revision=0)
    ops = [client.put_op(b"lock", b"me"), client.range_op(b"lock"), client.put_op(b"other", b"1")]
    done = client.txn([is_new], ops, [client.range_op(b"lock")])
    assert done.succeeded and done.header.revision == 2
    assert done.responses[1].response_range.kvs[0].value == b"me"
    again = client.txn([is_new], ops, [client.range_op(b"lock")])
    assert not again.succeeded and again.header.revision == 2 and again.responses[0].response_range.kvs[0].value == b"me"
    assert {kv.mod_revision for kv in client.range(b"l", b"p").kvs} == {2}


def test_a_put_and_a_delete_of_one_revision_are_both_seen(served):
    client, _, _ = served
    pb = client.pb
    client.put(b"p", b"0")
    # A delete without an end is not seen to meet the put.
    endless = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"p", range_end=b"\0"))
    assert client.txn(success=[client.put_op(b"p", b"1"), client.put_op(b"q", b"1"), endless]).header.revision == 3
    watch = client.watch()
    watch.create(b"p", b"r", start_revision=3, prev_kv=True)
    assert watch.next().created
    seen = [(event.type, event.kv.key, event.kv.mod_revision, event.prev_kv.value) for event in watch.events(4)]
    assert seen == [(0, b"p", 3, b"0"), (0, b"q", 3, b""), (1, b"p", 3, b"0"), (1, b"q", 3, b"")]
    client.compact(3)
    watch.create(b"p", b"r", start_revision=3)
    assert watch.next().created
    assert [event.type for event in watch.events(2)] == [1, 1]
    watch.close()


def test_what_is_wrong_in_a_transaction_is_told_in_the_order_of_etcd(served):
    client, _, _ = served
    pb = client.pb
    unsorted = pb.RequestOp(request_range=pb.RangeRequest(key=b"k", sort_order=3))
    nameless = pb.Compare(target="LEASE", lease=1)
    texts = [
        (lambda: client.txn([nameless], [unsorted]), "key is not provided"),
        (lambda: client.txn(success=[unsorted, pb.RequestOp()]), "invalid sort option"),
        (lambda: client.txn(success=[pb.RequestOp(), unsorted]), "key not found"),
        (lambda: client.txn(success=[client.put_op(b"k", b""), client.put_op(b"k", b""), pb.RequestOp()]), "key not found"),
    ]
    for call, text in texts:
        assert error_of(call) == ("INVALID_ARGUMENT", PREFIX + text)
    # A result without a meaning holds, a target without one is equal to everything.
    assert client.txn([pb.Compare(key=b"k", result=4)]).succeeded and client.txn([pb.Compare(key=b"k", target=5)]).succeeded
    assert not client.txn([pb.Compare(key=b"k", target=5, result="NOT_EQUAL")]).succeeded
    inner = client.txn(success=[pb.RequestOp(request_txn=pb.TxnRequest(success=[client.put_op(b"k", b"")]))])
    assert inner.responses[0].response_txn.header.revision == 0
    assert inner.responses[0].response_txn.responses[0].response_put.header.revision == 2


def test_a_watcher_begins_after_what_was_acknowledged_and_its_number_is_its_own(served):
    client, _, _ = served
    watch = client.watch()
    for number in range(30):
        client.put(b"k", b"%d" % number)
        watch.create(b"k", start_revision=0)
        created = watch.next()
        assert (created.created, created.watch_id, created.header.revision) == (True, number, number + 2)
        watch.cancel(number)
        assert watch.next().canceled
    watch.create(b"k", start_revision=32)
    assert watch.next().watch_id == 30
    # Who waits for a revision to come has no place that could be told.
    watch.progress()
    client.put(b"k", b"")
    assert watch.next().events[0].kv.mod_revision == 32
    watch.progress()
    assert (watch.next().watch_id, client.range(b"k").header.revision) == (-1, 32)
    watch.create(b"k", start_revision=2)
    assert watch.next().created
    watch.close()


def test_watchers_get_each_event_once_in_order_from_wherever_they_begin(served):
    client, _, _ = served
    for number in range(5):
        client.put(b"w%d" % (number % 2), b"%d" % number)
    client.delete(b"w0")
    watch = client.watch()
    watch.create(b"w", b"x", start_revision=3, prev_kv=True)
    created = watch.next()
    assert created.created and created.watch_id == 0 and created.header.revision == 7
    events = watch.events(5)
    assert [event.kv.mod_revision for event in events] == [3, 4, 5, 6, 7]
    assert [event.prev_kv.value for event in events] == [b"", b"0", b"1", b"2", b"4"]
    assert events[-1].type == 1 and events[-1].kv.key == b"w0" and not events[-1].kv.value
    watch.create(b"w1", filters=["NOPUT"])
    assert watch.next().watch_id == 1
    client.put(b"w1", b"last")
    response = watch.next()
    assert (response.watch_id, response.header.revision, len(response.events)) == (0, 8, 1)
    client.delete(b"w1")
    both = [watch.next(), watch.next()]
    assert sorted(response.watch_id for response in both) == [0, 1]
    watch.progress()
    progress = watch.next()
    assert (progress.watch_id, progress.header.revision, len(progress.events)) == (-1, 9, 0)
    watch.cancel(1)
    assert watch.next().canceled
    client.compact(6)
    watch.create(b"w0", start_revision=5)
    assert watch.next().created
    compacted = watch.next()
    assert compacted.canceled and compacted.compact_revision == 6
    watch.close()


def test_a_lease_takes_its_keys_along_in_one_revision(served):
    client, _, _ = served
    lease = client.grant(1)
    assert lease.TTL == 2 and lease.ID > 0
    client.put(b"l1", b"", lease=lease.ID)
    client.put(b"l2", b"", lease=lease.ID)
    left = client.leases.LeaseTimeToLive(client.pb.LeaseTimeToLiveRequest(ID=lease.ID, keys=True))
    assert left.grantedTTL == 2 and sorted(left.keys) == [b"l1", b"l2"]
    watch = client.watch()
    watch.create(b"l", b"m")
    assert watch.next().created
    renewed = next(client.leases.LeaseKeepAlive(iter([client.pb.LeaseKeepAliveRequest(ID=lease.ID)])))
    assert renewed.TTL == 2
    events = watch.events(2)
    assert [(event.type, event.kv.key, event.kv.mod_revision) for event in events] == [(1, b"l1", 4), (1, b"l2", 4)]
    watch.close()
    gone = client.leases.LeaseTimeToLive(client.pb.LeaseTimeToLiveRequest(ID=lease.ID))
    assert (gone.TTL, gone.grantedTTL) == (-1, 0)
    assert next(client.leases.LeaseKeepAlive(iter([client.pb.LeaseKeepAliveRequest(ID=lease.ID)]))).TTL == 0
    assert error_of(lambda: client.leases.LeaseRevoke(client.pb.LeaseRevokeRequest(ID=lease.ID)))[0] == "NOT_FOUND"


def test_a_lock_goes_from_one_to_the_next_and_an_election_too(served):
    client, _, door = served
    lock_pb, election_pb, locks, elections = client.queues()
    first = client.grant(60).ID
    held = locks.Lock(lock_pb.LockRequest(name=b"l", lease=first), timeout=20)
    assert held.key == b"l/%x" % first
    other = Client(door)
    waits = other.queues()[2].Lock.future(lock_pb.LockRequest(name=b"l", lease=client.grant(60).ID))
    gives_up = other.queues()[2].Lock.future(lock_pb.LockRequest(name=b"l", lease=client.grant(60).ID))
    while client.range(b"l/", b"l0", count_only=True).count < 3:
        time.sleep(0.01)
    assert not waits.done()
    gives_up.cancel()
    while client.range(b"l/", b"l0", count_only=True).count > 2:
        time.sleep(0.01)
    locks.Unlock(lock_pb.UnlockRequest(key=held.key))
    assert waits.result(timeout=20).key.startswith(b"l/")
    assert error_of(lambda: elections.Leader(election_pb.LeaderRequest(name=b"e"))) == ("UNKNOWN", "election: no leader")
    observed = elections.Observe(election_pb.LeaderRequest(name=b"e"))
    leader = elections.Campaign(election_pb.CampaignRequest(name=b"e", lease=first, value=b"one")).leader
    assert next(observed).kv.value == b"one"
    elections.Proclaim(election_pb.ProclaimRequest(leader=leader, value=b"two"))
    assert next(observed).kv.value == elections.Leader(election_pb.LeaderRequest(name=b"e")).kv.value == b"two"
    elections.Resign(election_pb.ResignRequest(leader=leader))
    proclaim = election_pb.ProclaimRequest(leader=leader, value=b"x")
    assert error_of(lambda: elections.Proclaim(proclaim)) == ("UNKNOWN", "election: not leader")
    missing = election_pb.ProclaimRequest(value=b"x")
    assert error_of(lambda: elections.Proclaim(missing)) == ("UNKNOWN", '"leader" field must be provided')
    observed.cancel()
    other.close()


def test_it_says_what_it_is(served):
    client, _, door = served
    status = client.maintenance.Status(client.pb.StatusRequest())
    (member,) = client.cluster.MemberList(client.pb.MemberListRequest()).members
    assert status.leader == member.ID != 0 and status.version == "3.7.1" and status.raftTerm == 2
    assert list(member.clientURLs) == [f"http://127.0.0.1:{door}"]
    with urllib.request.urlopen(f"http://127.0.0.1:{door}/version") as answer:
        assert json.load(answer)["etcdserver"] == "3.7.1"
    with urllib.request.urlopen(f"http://127.0.0.1:{door}/health") as answer:
        assert json.load(answer) == {"health": "true", "reason": ""}
    added = client.pb.MemberAddRequest(peerURLs=["http://127.0.0.1:1"])
    assert error_of(lambda: client.cluster.MemberAdd(added)) == ("UNAVAILABLE", PREFIX + "unhealthy cluster")


def post(door: int, path: str, body) -> tuple[int, dict]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{door}/v3/{path}", text)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_gateway_speaks_json(served):
    client, _, door = served
    status, put = post(door, "kv/put", {"key": "Zm9v", "value": "YmFy", "unknown": 1})
    assert status == 200 and put["header"]["revision"] == "2"
    assert client.get(b"foo") == b"bar"
    _, found = post(door, "kv/range", {"key": "Zm9v", "limit": "5", "sort_order": "DESCEND", "sortTarget": 2})
    assert found["kvs"] == [{"key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "YmFy"}]
    assert found["count"] == "1" and "more" not in found
    compare = {"key": "Zm9v", "target": "VERSION", "result": "EQUAL", "version": "1"}
    success = [{"requestDeleteRange": {"key": "Zm9v"}}]
    _, done = post(door, "kv/txn", {"compare": [compare], "success": success})
    assert done["succeeded"] and done["responses"][0]["response_delete_range"]["deleted"] == "1"
    assert post(door, "lease/leases", b"")[1]["header"]["revision"] == "3"
    assert post(door, "kv/put", {"key": "Zm9v", "lease": 9}) == (404, {"code": 5, "message": PREFIX + "requested lease not found"})
    assert post(door, "kv/range", {"key": "Zm9v", "revision": 9})[0] == 400
    assert post(door, "kv/range", b"{")[0] == 400 and post(door, "kv/range", {"key": 5})[0] == 400
    watch = urllib.request.Request(f"http://127.0.0.1:{door}/v3/watch", json.dumps({"create_request": {"key": "Zm9v", "start_revision": 2}}).encode())
    with urllib.request.urlopen(watch, timeout=30) as stream:
        assert json.loads(stream.readline())["result"]["created"]
        events = json.loads(stream.readline())["result"]["events"]
        assert [event.get("type", "PUT") for event in events] == ["PUT", "DELETE"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{door}/v3/kv/range")
    assert refused.value.code == 501


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path):
    door, rng = free_port(), random.Random(5)
    server = Server(tmp_path / "data", "46MiB", options=("--etcd", f"127.0.0.1:{door}"))
    told: dict[bytes, int] = {}
    highest = 1
    for _ in range(4):
        server.start()
        clients = [Client(door) for _ in range(3)]
        assert clients[0].range(b"k").header.revision >= highest
        for key, revision in told.items():
            assert clients[0].range(key).kvs[0].mod_revision >= revision, key
        ended = threading.Event()

        def write(client, number):
            at = 0
            while not ended.is_set():
                key = b"k%d-%d" % (number, at % 40)
                try:
                    told[key] = client.put(key, bytes(at % 3000)).header.revision
                except Exception:
                    return
                at += 1

        threads = [threading.Thread(target=write, args=(client, number)) for number, client in enumerate(clients)]
        [thread.start() for thread in threads]
        time.sleep(0.3 + rng.random() * 0.5)
        server.kill9()
        ended.set()
        [thread.join() for thread in threads]
        [client.close() for client in clients]
        highest = max([highest, *told.values()])
    assert len(told) > 20
    server.start()
    client = Client(door)
    assert client.range(b"k").header.revision >= highest
    # Each change has a revision of its own, and none is missing.
    watch = client.watch()
    watch.create(b"k", b"l", start_revision=2)
    assert watch.next().created
    revisions = [event.kv.mod_revision for event in watch.events(client.range(b"k").header.revision - 1)]
    assert revisions == list(range(2, len(revisions) + 2))
    watch.close()
    client.close()
    server.stop()


def test_the_largest_request_and_a_range_of_many_such_fit_a_small_budget(tmp_path):
    door = free_port()
    with Server(tmp_path / "data", "64MiB", options=("--etcd", f"127.0.0.1:{door}")) as server:
        client = Client(door)
        for number in range(12):
            client.put(b"big%d" % (number % 4), bytes([number]) * 1_500_000)
        assert client.get(b"big3") == bytes([11]) * 1_500_000
        for number in range(5_000):
            client.put(b"small%05d" % number, bytes(200))
        assert client.range(b"small", b"smalm", count_only=True).count == 5_000
        assert len(client.range(b"small", b"smalm").kvs) == 5_000
        assert server.peak() <= server.budget
        client.close()


def test_a_range_of_any_length_is_one_answer_that_is_not_held(served):
    client, server, door = served
    value = b"v" * 20_000
    for at in range(1500):
        client.put(b"long/%05d" % at, value + b"%d" % at)
    client.delete(b"long/00000")
    before = server.charge()
    seen = Sampler(server.charge, every=0.005)
    found = client.range(b"long/", b"long0")
    assert (len(found.kvs), found.count, found.more) == (1499, 1499, False)
    assert all(kv.value == value + b"%d" % (at + 1) and kv.version == 1 for at, kv in enumerate(found.kvs))
    assert found.header.revision == 1502 and found.header.member_id
    some = client.range(b"long/", b"long0", limit=1200)
    assert (len(some.kvs), some.count, some.more) == (1200, 1499, True)
    keys = client.range(b"long/", b"long0", keys_only=True, revision=1501)
    assert len(keys.kvs) == 1500 and not any(kv.value for kv in keys.kvs)
    assert error_of(lambda: client.range(b"a", b"z", revision=9999))[0] == "OUT_OF_RANGE"
    assert client.range(b"x", b"z").count == 0
    # 30 MB went by. The peak is of the start, which is not what is asked about.
    assert max(seen.stop()) < before + (16 << 20)


def test_the_largest_request_works_at_the_least_budget(tmp_path):
    """At once after the start, and when the store has slept and what it had is used elsewhere."""
    door = free_port()
    options = ("--etcd", f"127.0.0.1:{door}")
    with pytest.raises(Exception) as refused:
        Server(tmp_path / "none", "38MiB", options=options).start()
    least = float(re.search(r"([\d.]+) MiB is the least", str(refused.value)).group(1)) + 0.1
    with Server(tmp_path / "data", f"{round(least * 1024)}KiB", options=options) as server:
        client, value = Client(door), random.Random(1).randbytes(1_572_864 - 200)
        for number in range(3):
            client.put(b"large-%d" % number, value)
        until = time.monotonic() + 60
        while any(it["name"] == "versions/log" and it["bytes"] > 100_000 for it in server.memory()["accounts"]):
            assert time.monotonic() < until, "the store never falls asleep"
            time.sleep(0.2)
        client.put(b"large", value)
        assert client.range(b"large").kvs[0].value == value
        client.close()
