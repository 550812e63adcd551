"""A client of etcd's door: the stubs are made from the door's own protobuf files, once for each process.

    proto files ─► grpc_tools ─► modules, whose files go as soon as they are imported ─► Client(port).kv, .watch, .lease, ...
"""

import importlib
import queue
import sys
import tempfile
from functools import cache
from pathlib import Path

import grpc
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent.parent / "crates" / "door-etcd" / "proto"


@cache
def modules():
    """Messages, and stubs of the services."""
    files = [str(path) for path in sorted(PROTO.glob("*.proto"))]
    with tempfile.TemporaryDirectory(prefix="etcd-stubs-") as made:
        status = protoc.main(["protoc", f"-I{PROTO}", f"--python_out={made}", f"--grpc_python_out={made}", *files])
        assert status == 0, "the protobuf files do not compile"
        sys.path.insert(0, made)
        try:
            for name in ("v3lock_pb2_grpc", "v3election_pb2_grpc"):
                importlib.import_module(name)
            return importlib.import_module("rpc_pb2"), importlib.import_module("rpc_pb2_grpc")
        finally:
            sys.path.remove(made)


class _Details(grpc.ClientCallDetails):
    def __init__(self, details, metadata):
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready, self.compression, self.metadata = details.wait_for_ready, details.compression, metadata


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Sends a token along with each call."""

    def __init__(self, token: str):
        self.token = token

    def _call(self, go_on, details, asked):
        metadata = [*(details.metadata or ()), ("token", self.token)]
        return go_on(_Details(details, metadata), asked)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_stream = _call


class Client:
    """One connection. With a token, all calls are of its user."""

    def __init__(
        self,
        port: int | str,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        authority: str | None = None,
    ):
        self.port = port
        self.pb, stubs = modules()
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if authority is not None:
            options.append(("grpc.default_authority", authority))
        target = f"127.0.0.1:{port}" if isinstance(port, int) else port
        if credentials is None:
            self.channel = grpc.insecure_channel(target, options)
        else:
            self.channel = grpc.secure_channel(target, credentials, options)
        grpc.channel_ready_future(self.channel).result(timeout=30)
        if token is not None:
            self.channel = grpc.intercept_channel(self.channel, _Token(token))
        self.kv = stubs.KVStub(self.channel)
        self.watches = stubs.WatchStub(self.channel)
        self.leases = stubs.LeaseStub(self.channel)
        self.cluster = stubs.ClusterStub(self.channel)
        self.maintenance = stubs.MaintenanceStub(self.channel)
        self.auth = stubs.AuthStub(self.channel)

    def queues(self):
        """Messages of locks and of elections, and their stubs."""
        lock, election = importlib.import_module("v3lock_pb2"), importlib.import_module("v3election_pb2")
        locks = importlib.import_module("v3lock_pb2_grpc").LockStub(self.channel)
        return lock, election, locks, importlib.import_module("v3election_pb2_grpc").ElectionStub(self.channel)

    def put(self, key: bytes, value: bytes, **more):
        return self.kv.Put(self.pb.PutRequest(key=key, value=value, **more), timeout=60)

    def range(self, key: bytes, end: bytes = b"", **more):
        return self.kv.Range(self.pb.RangeRequest(key=key, range_end=end, **more), timeout=60)

    def get(self, key: bytes) -> bytes | None:
        kvs = self.range(key).kvs
        return kvs[0].value if kvs else None

    def delete(self, key: bytes, end: bytes = b"", **more):
        return self.kv.DeleteRange(self.pb.DeleteRangeRequest(key=key, range_end=end, **more), timeout=60)

    def txn(self, compare=(), success=(), failure=()):
        return self.kv.Txn(self.pb.TxnRequest(compare=compare, success=success, failure=failure), timeout=60)

    def put_op(self, key: bytes, value: bytes):
        return self.pb.RequestOp(request_put=self.pb.PutRequest(key=key, value=value))

    def range_op(self, key: bytes, end: bytes = b"", **more):
        return self.pb.RequestOp(request_range=self.pb.RangeRequest(key=key, range_end=end, **more))

    def compact(self, revision: int, physical: bool = False):
        return self.kv.Compact(self.pb.CompactionRequest(revision=revision, physical=physical), timeout=60)

    def grant(self, ttl: int, id: int = 0):
        return self.leases.LeaseGrant(self.pb.LeaseGrantRequest(TTL=ttl, ID=id), timeout=60)

    def manage(self, call: str, **fields):
        """A call of the Auth service by its name, such as UserAdd."""
        kind = call if call.startswith("Auth") else f"Auth{call}"
        return getattr(self.auth, call)(getattr(self.pb, f"{kind}Request")(**fields), timeout=60)

    def as_user(self, name: str, password: str) -> "Client":
        return Client(self.port, self.manage("Authenticate", name=name, password=password).token)

    def watch(self) -> "Watch":
        return Watch(self)

    def close(self):
        self.channel.close()


class Watch:
    """One stream of watchers."""

    def __init__(self, client: Client):
        self.pb, self.asked = client.pb, queue.Queue()
        self.answers = client.watches.Watch(iter(self.asked.get, None))

    def create(self, key: bytes, end: bytes = b"", **more):
        create = self.pb.WatchCreateRequest(key=key, range_end=end, **more)
        self.asked.put(self.pb.WatchRequest(create_request=create))

    def cancel(self, watch_id: int):
        self.asked.put(self.pb.WatchRequest(cancel_request=self.pb.WatchCancelRequest(watch_id=watch_id)))

    def progress(self):
        self.asked.put(self.pb.WatchRequest(progress_request=self.pb.WatchProgressRequest()))

    def next(self):
        return next(self.answers)

    def events(self, count: int) -> list:
        """So many events, of however many responses."""
        found = []
        while len(found) < count:
            found.extend(self.next().events)
        return found

    def close(self):
        self.asked.put(None)
        self.answers.cancel()


def error_of(call) -> tuple[str, str]:
    """Code and text of the error that a call ends with."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("it did not fail")
