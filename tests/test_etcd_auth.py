"""Users, roles and alarms of etcd's door: who may do what, with the codes and texts that clients know."""

import json
import urllib.error
import urllib.request

import grpc
import pytest

from harness.etcd import Client, error_of, modules
from harness.server import Server, free_port

PREFIX = "etcdserver: "
DENIED = ("PERMISSION_DENIED", PREFIX + "permission denied")
READ, WRITE, READWRITE = 0, 1, 2


@pytest.fixture
def served(tmp_path):
    door = free_port()
    with Server(tmp_path / "data", "64MiB", options=("--etcd", f"127.0.0.1:{door}")) as server:
        client = Client(door)
        yield client, server, door
        client.close()


def permission(kind: int, key: bytes, end: bytes = b""):
    from importlib import import_module

    modules()
    return import_module("auth_pb2").Permission(permType=kind, key=key, range_end=end)


def enable(client: Client) -> Client:
    """Root, and a user who may read a to c and write b."""
    client.manage("UserAdd", name="root", password="r")
    client.manage("UserGrantRole", user="root", role="root")
    client.manage("UserAdd", name="ann", password="a")
    client.manage("RoleAdd", name="some")
    client.manage("RoleGrantPermission", name="some", perm=permission(READ, b"a", b"c"))
    client.manage("RoleGrantPermission", name="some", perm=permission(WRITE, b"b"))
    client.manage("UserGrantRole", user="ann", role="some")
    client.manage("AuthEnable")
    return client.as_user("root", "r")


def test_users_and_roles_are_managed_as_in_etcd(served):
    client, server, door = served
    assert client.manage("AuthStatus").authRevision == 1
    no = error_of
    assert no(lambda: client.manage("AuthEnable")) == ("FAILED_PRECONDITION", PREFIX + "root user does not exist")
    client.manage("UserAdd", name="root", password="r")
    assert no(lambda: client.manage("AuthEnable"))[1] == PREFIX + "root user does not have root role"
    assert no(lambda: client.manage("Authenticate", name="root", password="r"))[1] == PREFIX + "authentication is not enabled"
    refused = [
        ("UserAdd", {"name": ""}, "INVALID_ARGUMENT", "user name is empty"),
        ("UserAdd", {"name": "root"}, "FAILED_PRECONDITION", "user name already exists"),
        ("UserGet", {"name": "x"}, "FAILED_PRECONDITION", "user name not found"),
        ("UserDelete", {"name": "x"}, "FAILED_PRECONDITION", "user name not found"),
        ("UserChangePassword", {"name": "x"}, "FAILED_PRECONDITION", "user name not found"),
        ("UserGrantRole", {"user": "root", "role": "x"}, "FAILED_PRECONDITION", "role name not found"),
        ("UserRevokeRole", {"name": "root", "role": "x"}, "FAILED_PRECONDITION", "role is not granted to the user"),
        ("RoleAdd", {"name": ""}, "INVALID_ARGUMENT", "role name is empty"),
        ("RoleGet", {"role": "x"}, "FAILED_PRECONDITION", "role name not found"),
        ("RoleDelete", {"role": "x"}, "FAILED_PRECONDITION", "role name not found"),
        ("RoleGrantPermission", {"name": "x"}, "INVALID_ARGUMENT", "permission not given"),
        ("RoleGrantPermission", {"name": "x", "perm": permission(READ, b"b", b"a")}, "INVALID_ARGUMENT", "invalid auth management"),
        ("RoleGrantPermission", {"name": "x", "perm": permission(READ, b"b")}, "FAILED_PRECONDITION", "role name not found"),
        ("RoleRevokePermission", {"role": "x", "key": b"a"}, "FAILED_PRECONDITION", "role name not found"),
    ]
    for call, fields, code, text in refused:
        assert no(lambda c=call, f=fields: client.manage(c, **f)) == (code, PREFIX + text), (call, fields)
    client.manage("RoleAdd", name="some")
    assert no(lambda: client.manage("RoleAdd", name="some"))[1] == PREFIX + "role name already exists"
    client.manage("RoleGrantPermission", name="some", perm=permission(READ, b"k"))
    client.manage("RoleGrantPermission", name="some", perm=permission(READWRITE, b"k"))
    client.manage("RoleGrantPermission", name="some", perm=permission(READ, b"a", b"\0"))
    perms = client.manage("RoleGet", role="some").perm
    assert [(perm.key, perm.range_end, perm.permType) for perm in perms] == [(b"a", b"\0", READ), (b"k", b"", READWRITE)]
    wrong = lambda: client.manage("RoleRevokePermission", role="some", key=b"a")
    assert no(wrong)[1] == PREFIX + "permission is not granted to the role"
    client.manage("UserGrantRole", user="root", role="some")
    before = client.manage("AuthStatus").authRevision
    client.manage("UserGrantRole", user="root", role="some")
    assert client.manage("AuthStatus").authRevision == before, "nothing changed"
    client.manage("UserGrantRole", user="root", role="root")
    assert list(client.manage("UserGet", name="root").roles) == ["root", "some"]
    client.manage("RoleDelete", role="some")
    assert list(client.manage("UserGet", name="root").roles) == ["root"]
    assert list(client.manage("UserList").users) == ["root"] and not client.manage("RoleList").roles
    client.manage("AuthEnable")
    root = client.as_user("root", "r")
    for call, fields in [("UserDelete", {"name": "root"}), ("UserRevokeRole", {"name": "root", "role": "root"}), ("RoleDelete", {"role": "root"})]:
        assert no(lambda c=call, f=fields: root.manage(c, **f))[1] == PREFIX + "invalid auth management", call
    revision = root.manage("AuthStatus").authRevision
    server.kill9()
    server.start()
    again = Client(door)
    status = again.manage("AuthStatus")
    assert status.enabled and status.authRevision == revision
    # Tokens did not survive, users did.
    assert no(lambda: Client(door, "x.1").range(b"a"))[0] == "UNAUTHENTICATED"
    again.as_user("root", "r").manage("AuthDisable")
    assert again.put(b"a", b"1").header.revision == 2


def test_each_call_is_allowed_to_those_who_may(served):
    client, _, door = served
    client.put(b"b", b"1")
    root = enable(client)
    ann, pb = client.as_user("ann", "a"), client.pb
    assert error_of(lambda: client.put(b"b", b"2")) == ("INVALID_ARGUMENT", PREFIX + "user name is empty")
    assert error_of(lambda: Client(door, "wrong.7").put(b"b", b"2")) == ("UNAUTHENTICATED", PREFIX + "invalid auth token")
    failed = ("INVALID_ARGUMENT", PREFIX + "authentication failed, invalid user ID or password")
    assert error_of(lambda: client.as_user("ann", "x")) == failed == error_of(lambda: client.as_user("x", "x"))
    root.grant(1000, id=7)
    root.kv.Put(pb.PutRequest(key=b"x", value=b"1", lease=7))
    ann.put(b"b", b"2", prev_kv=True)
    assert ann.get(b"b") == b"2" and not ann.range(b"a", b"c", limit=1).more
    denied = [
        lambda: ann.put(b"a", b"1"),
        lambda: ann.put(b"b", b"1", lease=7),
        lambda: ann.range(b"a", b"d"),
        lambda: ann.range(b"a", b"\0"),
        lambda: list(ann.kv.RangeStream(pb.RangeRequest(key=b"c"))),
        lambda: ann.delete(b"b", b"c"),
        lambda: ann.txn(success=[ann.put_op(b"b", b"1")], failure=[ann.put_op(b"c", b"1")]),
        lambda: ann.txn(compare=[pb.Compare(key=b"c")], success=[ann.put_op(b"b", b"1")]),
        lambda: ann.txn(success=[pb.RequestOp(request_txn=pb.TxnRequest(failure=[ann.range_op(b"c")]))]),
        lambda: ann.compact(2),
        lambda: ann.leases.LeaseRevoke(pb.LeaseRevokeRequest(ID=7)),
        lambda: ann.leases.LeaseTimeToLive(pb.LeaseTimeToLiveRequest(ID=7, keys=True)),
        lambda: ann.leases.LeaseLeases(pb.LeaseLeasesRequest()),
        lambda: next(ann.leases.LeaseKeepAlive(iter([pb.LeaseKeepAliveRequest(ID=7)]))),
        lambda: ann.maintenance.Defragment(pb.DefragmentRequest()),
        lambda: ann.maintenance.Alarm(pb.AlarmRequest(action=1, alarm=1)),
        lambda: ann.manage("UserAdd", name="eve"),
        lambda: ann.manage("UserGet", name="root"),
        lambda: ann.manage("RoleList"),
        lambda: ann.cluster.MemberAdd(pb.MemberAddRequest(peerURLs=["http://x:1"])),
    ]
    for at, call in enumerate(denied):
        assert error_of(call) == DENIED, at
    assert list(ann.manage("UserGet", name="ann").roles) == ["some"]
    assert len(ann.manage("RoleGet", role="some").perm) == 2
    assert ann.maintenance.Status(pb.StatusRequest()).version and len(ann.cluster.MemberList(pb.MemberListRequest()).members) == 1
    watch = ann.watch()
    watch.create(b"a", b"d")
    refusal = watch.next()
    assert (refusal.watch_id, refusal.created, refusal.canceled, refusal.cancel_reason) == (-1, True, True, f"rpc error: code = PermissionDenied desc = {DENIED[1]}")
    watch.create(b"b")
    assert watch.next().watch_id == 0
    root.put(b"b", b"3")
    assert watch.events(1)[0].kv.value == b"3"
    watch.close()
    # A change counts at once, for tokens that were given before it, too.
    root.manage("RoleRevokePermission", role="some", key=b"b")
    assert error_of(lambda: ann.put(b"b", b"4")) == DENIED
    root.manage("UserChangePassword", name="ann", password="b")
    assert error_of(lambda: ann.get(b"b")) == ("UNAUTHENTICATED", PREFIX + "invalid auth token")
    assert client.as_user("ann", "b").get(b"b") == b"3"


def test_users_without_password_and_the_gateway(served):
    client, _, door = served
    options = __import__("importlib").import_module("auth_pb2").UserAddOptions(no_password=True)
    client.manage("UserAdd", name="cert", options=options)
    root = enable(client)
    no_password = "auth: authentication failed, password was given for no password user"
    assert error_of(lambda: client.as_user("cert", "x")) == ("UNKNOWN", no_password)
    root.manage("UserChangePassword", name="ann", password="")
    assert error_of(lambda: client.as_user("ann", ""))[0] == "INVALID_ARGUMENT", "an empty password opens nothing"
    assert error_of(lambda: Client(door, "x.1").manage("AuthStatus"))[0] == "UNAUTHENTICATED"

    def post(path, body, token=None):
        request = urllib.request.Request(f"http://127.0.0.1:{door}/v3/{path}", json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    status, answer = post("auth/authenticate", {"name": "root", "password": "r"})
    assert status == 200
    assert post("kv/put", {"key": "YQ==", "value": "YQ=="}) == (400, {"code": 3, "message": PREFIX + "user name is empty"})
    assert post("kv/put", {"key": "YQ==", "value": "YQ=="}, answer["token"])[0] == 200
    assert post("kv/range", {"key": "YQ=="}, "Bearer " + answer["token"])[1]["count"] == "1"
    assert post("auth/user/list", {}, "x")[0] == 401
    assert root.get(b"a") == b"a"


def test_alarms_are_raised_listed_kept_and_taken_back(served):
    client, server, door = served
    pb = client.pb
    ask = lambda client, **fields: client.maintenance.Alarm(pb.AlarmRequest(**fields)).alarms
    client.put(b"a", b"1")
    client.grant(100, id=5)
    assert not ask(client, action=0)
    member = client.range(b"a").header.member_id
    assert [alarm.alarm for alarm in ask(client, action=1, memberID=member, alarm=1)] == [1]
    full = ("RESOURCE_EXHAUSTED", PREFIX + "mvcc: database space exceeded")
    assert error_of(lambda: client.put(b"a", b"2")) == full == error_of(lambda: client.grant(10))
    assert error_of(lambda: client.txn(failure=[client.put_op(b"a", b"2")])) == full
    assert client.get(b"a") == b"1"
    server.kill9()
    server.start()
    client = Client(door)
    assert list(client.maintenance.Status(pb.StatusRequest()).errors) == [f"memberID:{member} alarm:NOSPACE "]
    assert error_of(lambda: client.put(b"a", b"2")) == full
    assert client.delete(b"a").deleted == 1
    client.compact(client.range(b"a").header.revision, physical=True)
    client.maintenance.Defragment(pb.DefragmentRequest())
    assert not ask(client, action=2, memberID=member + 1, alarm=1)
    assert [(alarm.memberID, alarm.alarm) for alarm in ask(client, action=2, memberID=member, alarm=1)] == [(member, 1)]
    assert not ask(client, action=0) and client.put(b"a", b"2").header.revision
    ask(client, action=1, memberID=1, alarm=2)
    corrupt = ("DATA_LOSS", PREFIX + "corrupt cluster")
    assert error_of(lambda: client.range(b"a")) == corrupt == error_of(lambda: client.delete(b"a"))
