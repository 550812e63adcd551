"""Attacks on etcd's door, each by itself: what a client may send, and leave unread, that costs the server more than it costs the client.

    messages    many empty operations, nested ones, broken ones, wrong lengths, compressed ones, floods of watchers and of leases
    HTTP/2      rapid resets, thousands of streams, windows of nothing, headers without an end, pings, bytes that are no HTTP
    bodies      the largest from 64 at a time, the largest answers unread, begun and never ended
    gateway     JSON that is nested, broken, of tiny parts, or slow
"""

import random
import socket
import struct
import threading
import time

import grpc

from harness.etcd import Client
from harness.raw_h2 import CONTINUATION, DATA, END_HEADERS, HEADERS, PING, RESET, SETTINGS, WINDOW, Raw, frame, message

KV = "/etcdserverpb.KV/"
WATCH, LEASE = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"
MOST = 2 << 20
ALL = b"\x0a\x01\0\x12\x01\0"  # a range of all keys

ATTACKS = []


def attack(act):
    ATTACKS.append(act)
    return act


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def part(field: int, body: bytes) -> bytes:
    """A field of bytes in a protobuf message."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def side_by_side(count: int, act) -> None:
    """Does it so often at a time; an attacker that is refused has had what it came for."""

    def work(number):
        try:
            act(number)
        except (OSError, grpc.RpcError, grpc.FutureTimeoutError):
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def unary(client: Client, method: str, body: bytes) -> str:
    """A call of bytes as they are; what was answered."""
    call = client.channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    try:
        call(body, timeout=20)
        return "OK"
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()[:80]}"


def each_unary(port: int, method: str, body: bytes, count: int) -> list[str]:
    """The same call from so many clients at a time."""
    answers = []

    def act(_):
        client = Client(port)
        try:
            answers.append(unary(client, method, body))
        finally:
            client.close()

    side_by_side(count, act)
    return answers


@attack
def many_empty_operations(port):
    return each_unary(port, KV + "Txn", part(2, b"") * (MOST // 2 - 50), 4)


@attack
def many_operations_of_a_transaction_that_comes_again(port):
    # Whoever reads it joins the first with the second; it is no less for that.
    inner = part(4, part(2, b"") * (MOST // 2 - 50)) + part(4, b"")
    return each_unary(port, KV + "Txn", part(2, inner), 4)


@attack
def many_transactions_of_one_operation(port):
    return each_unary(port, KV + "Txn", part(2, part(4, b"") * (MOST // 2 - 50)), 4)


@attack
def many_empty_conditions(port):
    return each_unary(port, KV + "Txn", part(1, b"") * (MOST // 2 - 50), 4)


@attack
def many_empty_ranges_in_an_operation(port):
    return each_unary(port, KV + "Txn", part(2, part(1, b"")) * (MOST // 4 - 50), 4)


@attack
def many_empty_filters(port):
    # Numbers of one byte each, of which four are made.
    body = part(1, part(5, b"\x01" * (1 << 20)))
    client = Client(port)
    stream = client.channel.stream_stream(WATCH, request_serializer=None, response_deserializer=None)
    try:
        for _ in stream(iter([body] * 8), timeout=3):
            pass
    except grpc.RpcError as error:
        return [error.code().name]
    finally:
        client.close()
    return []


@attack
def many_empty_urls_of_a_member(port):
    return each_unary(port, "/etcdserverpb.Cluster/MemberAdd", part(1, b"") * (MOST // 2 - 50), 4)


def nested(levels: int) -> bytes:
    body = part(2, part(2, part(1, b"k")))
    for _ in range(levels):
        body = part(2, part(4, body))
    return body


@attack
def nested_transactions(port):
    return [answer for levels in (40, 60, 1_000, 10_000, 100_000) for answer in each_unary(port, KV + "Txn", nested(levels), 2)]


@attack
def broken_messages(port):
    rnd, answers = random.Random(1), []
    client = Client(port)
    for method in ("Range", "Put", "DeleteRange", "Txn", "Compact", "RangeStream"):
        for _ in range(60):
            answers.append(unary(client, KV + method, rnd.randbytes(rnd.randrange(1, 300))))
            good = part(2, part(2, part(1, b"k") + part(2, b"v" * 30)))
            answers.append(unary(client, KV + method, good[: rnd.randrange(len(good))] + rnd.randbytes(2)))
    client.close()
    return sorted(set(answer.split(":")[0] for answer in answers))


@attack
def wrong_lengths(port):
    for body, length, flags in [(b"", 100, 0), (b"x" * 100, 5, 0), (b"x" * 10, (1 << 32) - 1, 0), (b"x" * 10, None, 1), (b"", None, 255), (b"x", 2 << 20, 0)]:
        raw = Raw(port)
        raw.call(KV + "Put", message(body, length, flags))
        raw.read(0.3)
        raw.close()
    raw = Raw(port)
    raw.call(KV + "Put", message(part(1, b"k")) * 3000)  # more than one message in a call that takes one
    raw.read(0.5)
    raw.close()


@attack
def the_largest_puts_from_64(port):
    value = b"v" * 1_500_000
    return each_unary(port, KV + "Put", part(1, b"large") + part(2, value), 64)


@attack
def begun_and_never_ended(port):
    def act(_):
        raw = Raw(port)
        # As much as the server's window takes.
        for _ in range(5):
            raw.call(KV + "Put", message(b"x" * 24_000, MOST)[:24_000], end=False)
        raw.read(4.0)
        raw.close()

    side_by_side(48, act)


def large_values(port: int) -> None:
    client = Client(port)
    for number in range(12):
        try:
            client.put(b"large/%d" % number, b"v" * 1_000_000)
        except grpc.RpcError:
            time.sleep(0.3)
    client.close()


@attack
def the_largest_answers_unread(port):
    large_values(port)

    def act(_):
        raw = Raw(port, receive=4096)
        for _ in range(8):
            raw.call(KV + "Range", message(ALL))
        time.sleep(4)
        raw.close()

    side_by_side(48, act)


def answers_with_a_window(port: int, window: int) -> None:
    large_values(port)

    def act(_):
        raw = Raw(port, window=window)
        for number in range(400):
            raw.call(KV + "Range", message(part(1, b"large/%d" % (number % 12))))
        raw.read(4.0)
        raw.close()

    side_by_side(6, act)


@attack
def answers_without_a_window(port):
    answers_with_a_window(port, 0)


@attack
def answers_with_a_window_of_one_byte(port):
    # Whatever has a byte of a window takes all of an answer, if it is let to.
    answers_with_a_window(port, 1)


@attack
def streams_of_a_range_unread(port):
    large_values(port)

    def act(_):
        raw = Raw(port, window=0)
        for _ in range(100):
            raw.call(KV + "RangeStream", message(ALL))
        raw.read(4.0)
        raw.close()

    side_by_side(8, act)


@attack
def rapid_resets(port):
    def act(_):
        raw = Raw(port)
        for _ in range(200):
            out = b""
            for _ in range(100):
                out += raw.head(KV + "Range") + frame(DATA, 1, raw.stream, message(ALL)) + frame(RESET, 0, raw.stream, struct.pack(">I", 8))
            raw.send(out)
        raw.read(1.0)
        raw.close()

    side_by_side(6, act)


@attack
def thousands_of_streams(port):
    def act(_):
        raw = Raw(port)
        for _ in range(100):
            raw.send(b"".join(raw.head(KV + "Put") for _ in range(100)))
        raw.read(4.0)
        raw.close()

    side_by_side(4, act)


@attack
def thousands_of_watch_streams(port):
    def act(_):
        raw = Raw(port)
        for _ in range(100):
            out = b""
            for _ in range(40):
                out += raw.head(WATCH) + frame(DATA, 0, raw.stream, message(part(1, part(1, b"k"))))
            raw.send(out)
        raw.read(3.0)
        raw.close()

    side_by_side(4, act)


@attack
def headers_without_an_end(port):
    def act(_):
        raw = Raw(port)
        raw.send(frame(HEADERS, 0, 1, b"\0\1a\1b" * 100))
        for _ in range(4000):
            raw.send(frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 1000))
        raw.close()

    side_by_side(8, act)


@attack
def headers_that_are_large(port):
    def act(_):
        raw = Raw(port)
        for number in range(300):
            raw.send(raw.head(KV + "Range", [(f"x-{number}-{at}", "v" * 1000) for at in range(14)]))
        raw.read(1.0)
        raw.close()

    side_by_side(16, act)


@attack
def pings_and_settings(port):
    def act(_):
        raw = Raw(port, receive=4096)
        for _ in range(2000):
            raw.send(frame(PING, 0, 0, b"12345678") * 20 + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 20 + frame(WINDOW, 0, 0, struct.pack(">I", 1)))
        raw.close()

    side_by_side(6, act)


@attack
def no_http(port):
    rnd = random.Random(2)
    for size in (1, 10, 24, 1000, 100_000):
        with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
            try:
                sock.sendall(rnd.randbytes(size))
                sock.recv(100)
            except OSError:
                pass


@attack
def connections_left_open(port):
    held = []
    for number in range(2000):
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=0.5)
            sock.sendall(b"PRI * HTTP/2.0\r\n"[: number % 16])
            held.append(sock)
        except OSError:
            break
    time.sleep(2)
    for sock in held:
        sock.close()
    return [str(len(held))]


def put_large_and_small(port: int, seconds: float) -> None:
    client, end = Client(port), time.monotonic() + seconds
    while time.monotonic() < end:
        for key, size in [(b"w/1", 100_000), (b"w/2", 10)]:
            try:
                client.put(key, b"v" * size)
            except grpc.RpcError:
                time.sleep(0.05)
    client.close()


@attack
def a_thousand_watchers_of_one_stream_unread(port):
    raw = Raw(port, window=0)
    raw.call(WATCH, b"".join(message(part(1, part(1, b"w") + part(2, b"x"))) for _ in range(1000)), end=False)
    put_large_and_small(port, 4)
    raw.close()


@attack
def a_thousand_watchers_of_one_stream_read(port):
    raw = Raw(port, window=1 << 30)
    raw.call(WATCH, b"".join(message(part(1, part(1, b"w") + part(2, b"x"))) for _ in range(1000)), end=False)
    reads = threading.Thread(target=raw.read, args=(4.0,))
    reads.start()
    put_large_and_small(port, 4)
    reads.join()
    raw.close()


@attack
def a_thousand_streams_of_watchers_unread(port):
    raws = [Raw(port, window=0) for _ in range(10)]
    for raw in raws:
        for _ in range(100):
            raw.call(WATCH, message(part(1, part(1, b"w") + part(2, b"x"))), end=False)
    put_large_and_small(port, 4)
    for raw in raws:
        raw.close()


@attack
def watchers_of_history_unread(port):
    put_large_and_small(port, 2)
    raws = [Raw(port, window=0) for _ in range(10)]
    for raw in raws:
        for _ in range(20):
            raw.call(WATCH, message(part(1, part(1, b"w") + part(2, b"x") + b"\x18\x02\x30\x01")), end=False)
    time.sleep(3)
    for raw in raws:
        raw.close()


@attack
def a_flood_of_watchers(port):
    poured = []

    def act(_):
        raw = Raw(port, window=0)
        raw.call(WATCH, b"", end=False)
        poured.append(raw.pour(message(part(1, part(1, b"k" * 200))) * 20_000, 4.0))
        raw.close()

    side_by_side(6, act)
    return poured


@attack
def a_flood_of_leases(port):
    def act(_):
        client = Client(port)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            calls = [client.leases.LeaseGrant.future(client.pb.LeaseGrantRequest(TTL=600), timeout=10) for _ in range(500)]
            for call in calls:
                call.exception()
        client.close()

    side_by_side(4, act)


@attack
def keep_alives_unread(port):
    poured = []

    def act(_):
        raw = Raw(port, window=0)
        raw.call(LEASE, b"", end=False)
        poured.append(raw.pour(message(b"\x08\x05") * 500_000, 3.0))
        raw.close()

    side_by_side(8, act)
    return poured


@attack
def locks_that_wait(port):
    def act(_):
        raw = Raw(port)
        for _ in range(300):
            raw.call("/v3lockpb.Lock/Lock", message(part(1, b"name")))
        raw.read(4.0)
        raw.close()

    side_by_side(4, act)


def post(port: int, path: str, body: bytes, length: int | None = None, wait: float = 10.0) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body) if length is None else length))
        try:
            sock.sendall(body)
            return sock.recv(200).decode("latin-1")[9:12]
        except OSError as error:
            return type(error).__name__


def each_post(port: int, path: str, body: bytes, count: int) -> list[str]:
    answers = []
    side_by_side(count, lambda _: answers.append(post(port, path, body)))
    return answers


@attack
def nested_json(port):
    deep = b'{"success":[{"request_txn":' * 10_000 + b"{}" + b"}]}" * 10_000
    lists = b'{"success":' + b"[" * 100_000
    return [post(port, "/v3/kv/txn", body) for body in (deep, lists, b'{"x":' * 100_000, b'{"success":[{"request_txn":' * 60 + b"{}" + b"}]}" * 60)]


@attack
def json_of_tiny_parts(port):
    body = b'{"success":[' + b"{}," * 1_300_000 + b"{}]}"
    return each_post(port, "/v3/kv/txn", body, 4)


@attack
def json_of_conditions(port):
    body = b'{"compare":[' + b'{"key":"YQ=="},' * 260_000 + b"{}]}"
    return each_post(port, "/v3/kv/txn", body, 4)


@attack
def json_of_messages(port):
    return each_post(port, "/v3/watch", b"{}" * 2_000_000, 4)


@attack
def broken_json(port):
    texts = [b"{", b"[]", b"\xff\xfe", b'{"key":5}', b'{"key":"%%%"}', b'{"limit":"1e999"}', b'{"limit":' + b"9" * 5000 + b"}", b'{"key":"\\ud800"}', b"null", b"nul"]
    return [post(port, "/v3/kv/range", text) for text in texts]


@attack
def slow_json(port):
    def act(_):
        with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
            sock.sendall(b"POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"fffff\r\n" + b" " * 500_000)
            time.sleep(3)

    side_by_side(64, act)


@attack
def large_answers_as_json_unread(port):
    large_values(port)
    ask = b'{"key":"AA==","range_end":"AA=="}'

    def act(_):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(b"POST /v3/kv/range HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(ask), ask))
        time.sleep(3)
        sock.close()

    side_by_side(32, act)


@attack
def json_watches_unread(port):
    def act(_):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        ask = b'{"create_request":{"key":"dw==","range_end":"eA=="}}'
        sock.sendall(b"POST /v3/watch HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(ask), ask))
        time.sleep(4)
        sock.close()

    watching = threading.Thread(target=side_by_side, args=(64, act))
    watching.start()
    put_large_and_small(port, 4)
    watching.join()
