"""The server as a process called `etcd`: its flags, when it says that it serves, TLS, health, metrics, compaction by itself."""

import http.client
import json
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import pytest

from harness.etcd import Client, error_of
from harness.member import READY, Member, run
from harness.server import Server, free_port


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    with Member(tmp_path_factory.mktemp("member"), "--name=m") as running:
        yield running


@pytest.fixture
def client(member):
    made = Client(member.port)
    yield made
    made.close()


def test_it_says_its_version_first(tmp_path):
    said = run(tmp_path, "--version")
    assert said.returncode == 0 and re.match(r"etcd Version: 3\.\d+\.\d+\n", said.stdout), said


def test_an_unknown_flag_ends_it_with_its_name(tmp_path):
    for flags, name in [
        (("--no-such-flag=1",), "no-such-flag"),
        (("--name", "a", "stray"), "'stray'"),
        (("--auto-tls",), "auto-tls"),
        (("--client-crl-file=x",), "client-crl-file"),
        (("--initial-cluster=a=http://127.0.0.1:1,b=http://127.0.0.1:2",), "initial-cluster"),
        (("--config-file=missing.yaml",), "missing.yaml"),
    ]:
        ended = run(tmp_path, *flags)
        assert ended.returncode == 2 and name in ended.stderr, ended
    assert not (tmp_path / "default.etcd").exists()


def test_data_of_another_etcd_is_left_alone(tmp_path):
    (tmp_path / "d" / "member" / "wal").mkdir(parents=True)
    ended = run(tmp_path, "--data-dir=d")
    assert ended.returncode == 5 and "another etcd" in ended.stderr, ended


def test_what_test_frameworks_pass_is_taken(tmp_path):
    peer = f"http://127.0.0.1:{free_port()}"
    flags = (
        "--name", "a", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=a={peer}", "--initial-cluster-token=token", "--initial-cluster-state", "new",
        "--data-dir", "d", "--snapshot-count=10000", "--strict-reconfig-check=false", "--feature-gates=InitialCorruptCheck=true",
        "--experimental-initial-corrupt-check=true", "-experimental-watch-progress-notify-interval", "5s", "--force-new-cluster",
        "--unsafe-no-fsync", "--snapshot-catchup-entries=5", "--logger=zap", "--log-outputs=stderr",
    )  # fmt: skip
    with Member(tmp_path, *flags) as member:
        client = Client(member.port)
        (own,) = client.cluster.MemberList(client.pb.MemberListRequest()).members
        assert (own.name, list(own.peerURLs), list(own.clientURLs)) == ("a", [peer], [member.url])
        client.close()
        log = member.log()
        assert "of no effect here:" in log and "--snapshot-count" in log and "--unsafe-no-fsync is not followed" in log
        assert (tmp_path / "d" / "versions").is_dir()


def test_the_same_folder_goes_on_after_sigterm_and_is_one_of_serve(tmp_path):
    member = Member(tmp_path, "--name=a")
    member.start()
    client = Client(member.port)
    client.put(b"k", b"v")
    ids = client.range(b"k").header
    watch = client.watch()
    watch.create(b"k")
    assert watch.next().created
    began = time.monotonic()
    assert member.stop() == 0 and time.monotonic() - began < 3, "an open watch keeps it from stopping"
    client.close()

    # Other addresses do not make it another member.
    member.command.append("--initial-advertise-peer-urls=http://127.0.0.1:1")
    with member:
        assert member.log().count(READY) == 2
        client = Client(member.port)
        found = client.range(b"k")
        assert found.kvs[0].value == b"v"
        assert (found.header.member_id, found.header.cluster_id) == (ids.member_id, ids.cluster_id)
        client.close()
        assert member.stop() == 0

    door = free_port()
    with Server(tmp_path / "a.etcd", "64MiB", options=("--etcd", f"127.0.0.1:{door}")):
        client = Client(door)
        assert client.get(b"k") == b"v"
        client.close()


def test_the_environment_and_a_file_say_what_flags_do(tmp_path):
    door = free_port()
    variables = {"ETCD_NAME": "of-environment", "ETCD_LISTEN_CLIENT_URLS": f"http://localhost:{door}", "RAMEKIN_HTTP": ""}
    with Member(tmp_path, listens=False, **variables):
        for target in (f"127.0.0.1:{door}", f"localhost:{door}"):
            client = Client(target)
            (own,) = client.cluster.MemberList(client.pb.MemberListRequest()).members
            assert (own.name, list(own.clientURLs)) == ("of-environment", [f"http://localhost:{door}"])
            client.close()
        assert (tmp_path / "of-environment.etcd").is_dir()

    folder = tmp_path / "file"
    folder.mkdir()
    text = f"name: of-file\ndata-dir: d\nlisten-client-urls: http://127.0.0.1:{door}\nmax-txn-ops: 2\nheartbeat-interval: 500\n"
    (folder / "etcd.yaml").write_text(text)
    with Member(folder, "--config-file=etcd.yaml", "--name=of-flag", listens=False, ETCD_NAME="of-environment") as member:
        client = Client(door)
        (own,) = client.cluster.MemberList(client.pb.MemberListRequest()).members
        assert own.name == "of-file" and "--heartbeat-interval" in member.log()
        op = [client.put_op(b"k%d" % n, b"") for n in range(3)]
        assert error_of(lambda: client.txn(success=op)) == ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
        client.close()


def test_the_ledger_has_a_door_where_it_is_asked_for(tmp_path):
    ledger = free_port()
    with Member(tmp_path, RAMEKIN_HTTP=f"127.0.0.1:{ledger}"):
        status, text = get(f"http://127.0.0.1:{ledger}/memory")
        assert status == 200 and json.loads(text)["result"]["budget_bytes"] == 64 << 20


def test_sizes_are_bounded_as_flags_say(tmp_path):
    with Member(tmp_path, "--max-request-bytes=100000", "--quota-backend-bytes=5000000000") as member:
        client = Client(member.port)
        code, text = error_of(lambda: client.put(b"k", b"v" * 100_000))
        assert (code, text) == ("INVALID_ARGUMENT", "etcdserver: request is too large")
        code, text = error_of(lambda: client.put(b"k", b"v" * 700_000))
        assert (code, text) == ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (700007 vs. 624288)")
        status = client.maintenance.Status(client.pb.StatusRequest())
        assert status.dbSizeQuota == 5_000_000_000
        client.close()


def test_http_may_have_addresses_of_its_own(tmp_path):
    plain, state = free_port(), free_port()
    flags = (f"--listen-client-http-urls=http://127.0.0.1:{plain}", f"--listen-metrics-urls=http://127.0.0.1:{state}")
    with Member(tmp_path, *flags, "--enable-grpc-gateway=false") as member:
        client = Client(member.port)
        client.put(b"k", b"v")
        client.close()
        assert get(f"{member.url}/version")[0] == 404
        for port, paths in [
            (plain, {"/version": 200, "/health": 200, "/metrics": 200, "/v3/kv/range": 404}),
            (state, {"/version": 404, "/health": 200, "/metrics": 200, "/livez": 200, "/readyz": 200}),
        ]:
            found = {path: get(f"http://127.0.0.1:{port}{path}")[0] for path in paths}
            assert found == paths


def test_a_socket_in_a_file_is_an_address(tmp_path):
    port = free_port()
    with Member(tmp_path, f"--listen-client-urls=unix://localhost:{port}", listens=False):
        assert (tmp_path / f"localhost:{port}").is_socket()
        # Go's clients call it so; Python's would call it by its path.
        client = Client(f"unix:{tmp_path}/localhost:{port}", authority=f"localhost:{port}")
        client.put(b"k", b"v")
        assert client.get(b"k") == b"v"
        client.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and what it signed: the server's, and one of the client alice; and a client that another authority signed."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other-ca"):
        make = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        openssl(*make, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", f"/CN={authority}")
    for name, authority, extension in [
        ("server", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ("alice", "ca", "extendedKeyUsage=clientAuth"),
        ("mallory", "other-ca", "extendedKeyUsage=clientAuth"),
    ]:
        (folder / f"{name}.ext").write_text(extension + "\n")
        make = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl(*make, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=o/CN={name}")
        signed_by = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem", "-extfile", f"{name}.ext")
    return folder


def credentials(folder, name: str | None) -> grpc.ChannelCredentials:
    def read(file: str) -> bytes:
        return (folder / file).read_bytes()

    own = (read(f"{name}.key"), read(f"{name}.pem")) if name else (None, None)
    return grpc.ssl_channel_credentials(read("ca.pem"), *own)


def test_tls_serves_grpc_and_http_on_one_port(tmp_path, certificates):
    flags = (f"--cert-file={certificates}/server.pem", f"--key-file={certificates}/server.key")
    with Member(tmp_path, *flags, scheme="https") as member:
        client = Client(member.port, credentials=credentials(certificates, None))
        client.put(b"k", b"v")
        assert client.get(b"k") == b"v"
        client.close()
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        assert get(f"{member.url}/health", context)[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            get(f"http://127.0.0.1:{member.port}/health")


def test_a_port_may_take_clients_with_tls_and_without(tmp_path, certificates):
    port = free_port()
    urls = f"--listen-client-urls=http://localhost:{port},https://localhost:{port}"
    flags = (urls, f"--cert-file={certificates}/server.pem", f"--key-file={certificates}/server.key")
    with Member(tmp_path, *flags, listens=False):
        client = Client(port)
        client.put(b"k", b"v")
        client.close()
        secured = Client(port, credentials=credentials(certificates, None))
        assert secured.get(b"k") == b"v"
        secured.close()
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        assert get(f"https://localhost:{port}/health", context)[0] == get(f"http://127.0.0.1:{port}/health")[0] == 200


def test_clients_show_a_certificate_where_that_is_asked(tmp_path, certificates):
    flags = (f"--cert-file={certificates}/server.pem", f"--key-file={certificates}/server.key")
    more = ("--client-cert-auth", f"--trusted-ca-file={certificates}/ca.pem")
    with Member(tmp_path, *flags, *more, scheme="https") as member:
        client = Client(member.port, credentials=credentials(certificates, "alice"))
        client.put(b"k", b"v")
        client.close()
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        for name in (None, "mallory"):
            if name:
                context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
            with pytest.raises(OSError):
                get(f"{member.url}/health", context)
        # The authority may come itself.
        for name in ("alice", "ca"):
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
            assert get(f"{member.url}/health", context)[0] == 200
        context.load_cert_chain(certificates / "other-ca.pem", certificates / "other-ca.key")
        with pytest.raises(OSError):
            get(f"{member.url}/health", context)


def test_serve_speaks_tls_on_etcds_door_where_it_has_a_certificate(tmp_path, certificates):
    door = free_port()
    options = ("--etcd", f"127.0.0.1:{door}")
    tls = ("--tls-cert", f"{certificates}/server.pem", "--tls-key", f"{certificates}/server.key")
    server = Server(tmp_path / "data", "64MiB", options=(*options, *tls, "--http", "off"))
    command = server.command()
    with open(tmp_path / "log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        client = Client(door, credentials=credentials(certificates, None))
        client.put(b"k", b"v")
        client.close()
    finally:
        process.terminate()
        process.wait(30)


def test_health_and_its_checks(member):
    assert get(f"{member.url}/health") == (200, '{"health":"true","reason":""}')
    assert get(f"{member.url}/health?serializable=true&exclude=NOSPACE")[0] == 200
    for path, checks in [
        ("/livez", ["serializable_read"]),
        ("/readyz", ["data_corruption", "serializable_read", "linearizable_read", "non_learner"]),
    ]:
        assert get(f"{member.url}{path}") == (200, "ok\n")
        lines = "".join(f"[+]{check} ok\n" for check in checks)
        assert get(f"{member.url}{path}?verbose") == (200, f"{lines}{path} check passed\n")
        assert [get(f"{member.url}{path}/{check}") for check in checks] == [(200, "ok\n")] * len(checks)
    excluded = get(f"{member.url}/readyz?verbose&exclude=non_learner")
    assert excluded[0] == 200 and "[+]non_learner excluded: ok\n" in excluded[1]
    assert get(f"{member.url}/readyz/no_such_check")[0] == 404 and get(f"{member.url}/other")[0] == 404


NAMES = """
etcd_server_has_leader etcd_server_is_leader etcd_server_leader_changes_seen_total etcd_server_proposals_committed_total
etcd_server_proposals_applied_total etcd_server_proposals_pending etcd_server_proposals_failed_total etcd_server_health_success
etcd_server_health_failures etcd_server_quota_backend_bytes etcd_server_version etcd_cluster_version etcd_server_id
etcd_server_slow_apply_total etcd_server_read_indexes_failed_total etcd_server_client_requests_total
etcd_server_request_duration_seconds_bucket etcd_disk_wal_fsync_duration_seconds_bucket etcd_mvcc_put_total etcd_mvcc_delete_total
etcd_mvcc_txn_total etcd_mvcc_range_total etcd_mvcc_db_total_size_in_bytes etcd_mvcc_db_total_size_in_use_in_bytes
etcd_debugging_mvcc_keys_total etcd_debugging_mvcc_current_revision etcd_debugging_mvcc_compact_revision
etcd_debugging_mvcc_watcher_total etcd_debugging_mvcc_watch_stream_total etcd_debugging_mvcc_events_total
etcd_debugging_mvcc_total_put_size_in_bytes etcd_debugging_lease_granted_total etcd_debugging_lease_renewed_total
etcd_debugging_lease_revoked_total etcd_debugging_server_lease_expired_total etcd_network_client_grpc_received_bytes_total
etcd_network_client_grpc_sent_bytes_total grpc_server_handled_total grpc_server_started_total process_resident_memory_bytes
etcd_server_apply_duration_seconds_bucket etcd_server_range_duration_seconds_bucket etcd_mvcc_db_open_read_transactions
etcd_mvcc_hash_duration_seconds_count etcd_mvcc_hash_rev_duration_seconds_count etcd_debugging_mvcc_slow_watcher_total
etcd_debugging_mvcc_pending_events_total etcd_debugging_mvcc_db_compaction_keys_total etcd_debugging_lease_ttl_total_count
etcd_disk_backend_commit_duration_seconds_bucket etcd_disk_backend_defrag_duration_seconds_count
etcd_disk_backend_snapshot_duration_seconds_count etcd_disk_wal_write_bytes_total etcd_network_peer_round_trip_time_seconds_count
process_cpu_seconds_total process_start_time_seconds process_open_fds process_max_fds os_fd_used os_fd_limit
""".split()


def metrics(member: Member) -> dict[str, float]:
    status, text = get(f"{member.url}/metrics")
    assert status == 200
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_metrics_have_the_names_of_etcd_and_count(member, client):
    client.put(b"m", b"0")
    before = metrics(member)
    names = {name.split("{")[0] for name in before}
    assert set(NAMES) <= names, set(NAMES) - names

    client.put(b"m", b"1")
    client.range(b"m")
    client.txn(success=[client.put_op(b"n", b"22"), client.range_op(b"n")])
    assert error_of(lambda: client.put(b"", b""))[0] == "INVALID_ARGUMENT"
    client.delete(b"n")
    revision = client.range(b"m").header.revision
    client.compact(revision)
    client.grant(2)
    watch = client.watch()
    watch.create(b"m")
    watch.next()
    time.sleep(3)
    after = metrics(member)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["etcd_mvcc_put_total"] == 2 and grown["etcd_mvcc_range_total"] == 3 and grown["etcd_mvcc_txn_total"] == 1
    assert grown["etcd_mvcc_delete_total"] == 1
    assert (after["etcd_debugging_mvcc_current_revision"], after["etcd_debugging_mvcc_compact_revision"]) == (revision, revision)
    assert grown["etcd_debugging_lease_granted_total"] == 1 and grown["etcd_debugging_server_lease_expired_total"] == 1
    assert (after["etcd_debugging_mvcc_watcher_total"], after["etcd_debugging_mvcc_watch_stream_total"]) == (1, 1)
    assert grown["etcd_disk_wal_fsync_duration_seconds_count"] >= 4
    put = 'grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"}'
    handled = "grpc_server_handled_total{grpc_code="
    assert (grown[f'{handled}"OK",{put}'], grown[f'{handled}"InvalidArgument",{put}']) == (1, 1)
    assert after['etcd_server_version{server_version="3.7.1"}'] == 1 and after["process_resident_memory_bytes"] > 1 << 20
    watch.close()
    end = time.monotonic() + 10
    while metrics(member)["etcd_debugging_mvcc_watcher_total"] and time.monotonic() < end:
        time.sleep(0.05)
    assert metrics(member)["etcd_debugging_mvcc_watch_stream_total"] == 0


def test_health_and_reflection_are_services_of_grpc(client):
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=30) == b"\x08\x01"
    watched = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
    assert next(watched) == b"\x08\x01"
    watched.cancel()
    for version in ("v1", "v1alpha"):
        ask = client.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        # The field list_services, with the text "*".
        listed = next(ask(iter([b"\x3a\x01*"]), timeout=30))
        assert b"etcdserverpb.KV" in listed and b"v3lockpb.Lock" in listed


def test_a_version_that_is_no_text_is_refused(client):
    call = client.channel.unary_unary("/etcdserverpb.KV/Range")
    with pytest.raises(grpc.RpcError) as raised:
        call(b"\x0a\x01a", timeout=30, metadata=(("client-api-version", b"\xff\xfe"),))
    assert raised.value.code().name in ("INVALID_ARGUMENT", "INTERNAL")


def test_pages_of_other_origins_and_hosts_of_other_names(tmp_path, member):
    request = urllib.request.Request(f"{member.url}/v3/kv/range", method="OPTIONS", headers={"Origin": "http://a"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == "*"
    with Member(tmp_path, "--cors=http://a,http://b", "--host-whitelist=127.0.0.1,name") as strict:
        for origin, allowed in [("http://b", "http://b"), ("http://c", None)]:
            request = urllib.request.Request(f"{strict.url}/health", headers={"Origin": origin})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == allowed
        assert get(f"{strict.url}/health", Host=f"name:{strict.port}")[0] == 200
        assert get(f"{strict.url}/health", Host="elsewhere")[0] == 421


def test_it_compacts_by_itself(tmp_path):
    with Member(tmp_path, "--auto-compaction-mode=periodic", "--auto-compaction-retention=1s") as member:
        client = Client(member.port)
        for number in range(60):
            client.put(b"k", b"%d" % number)
            time.sleep(0.05)
        time.sleep(0.5)
        code, text = error_of(lambda: client.range(b"k", revision=3))
        assert (code, text) == ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")
        assert client.get(b"k") == b"59" and "by itself" in member.log()
        client.close()


def test_progress_is_told_as_often_as_the_flag_says(tmp_path):
    with Member(tmp_path, "--watch-progress-notify-interval=200ms") as member:
        client = Client(member.port)
        watch = client.watch()
        watch.create(b"k", progress_notify=True)
        assert watch.next().created
        began = time.monotonic()
        told = [watch.next() for _ in range(3)]
        assert time.monotonic() - began < 5 and not any(one.events for one in told)
        watch.close()
        client.close()
