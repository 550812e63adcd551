"""How an attack reaches the server, and who watches it meanwhile. What it says is drawn in `tests/attack`.

    large       sends all of it and waits for the answer
    slow        declares all of it, sends a part, then some bytes at a time; several at once
    abandoned   sends all of it and hangs up, several times
    unread      sends all of it and never reads the answer; such connections are kept for a while
    packed      sends all of it by gzip: what is over the limit is a bomb
    stalled     sends a part of its header on many connections, then nothing or a byte at a time

    Watch: a small query, GET /memory and GET /collections, again and again, from another process than the attackers
"""

import gzip
import json
import random
import socket
import struct
import threading
import time
from collections import deque

from harness.rest import Connection
from harness.server import Server

WAYS = ("large", "slow", "abandoned", "unread", "packed", "stalled")
FULL_KEY, READ_KEY = "the-full-key", "the-reading-key"
ANSWER_S = 15.0
UNREAD_KEPT = 24  # connections of one attacker that wait with an answer that it does not read


def head(method: str, path: str, key: str, length: int | None, encoding: str = "") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    coded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\napi-key: {key}\r\nContent-Type: application/json\r\n{coded}{size}\r\n\r\n".encode("latin-1")


def chunked(body: bytes, size: int):
    for at in range(0, len(body), size):
        part = body[at : at + size]
        yield b"%x\r\n" % len(part) + part + b"\r\n"
    yield b"0\r\n\r\n"


class Attacker:
    """One thread that sends. `stop` is looked at wherever it waits."""

    def __init__(self, port: int, stop):
        self.port, self.stop = port, stop
        self.unread: deque[socket.socket] = deque()

    def connect(self, receive: int | None = None, timeout: float = ANSWER_S) -> socket.socket:
        sock = socket.socket()
        if receive is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def close(self) -> None:
        while self.unread:
            self.unread.popleft().close()

    def send(self, way: str, rnd: random.Random, method: str, path: str, key: str, body: bytes) -> str:
        """Carries out one attack; what came back, in a word."""
        try:
            match way:
                case "large":
                    return self.large(rnd, method, path, key, body)
                case "slow":
                    return self.slow(rnd, method, path, key, body)
                case "abandoned":
                    return self.abandoned(rnd, method, path, key, body)
                case "packed":
                    return self.large(rnd, method, path, key, gzip.compress(body, 1), "gzip")
                case "stalled":
                    return self.stalled(rnd, head(method, path, key, len(body)))
            return self.kept_unread(rnd, method, path, key, body)
        except OSError as error:
            return type(error).__name__

    def large(self, rnd, method, path, key, body, encoding: str = "") -> str:
        with self.connect() as sock:
            try:
                if rnd.random() < 0.2:
                    sock.sendall(head(method, path, key, None, encoding))
                    for part in chunked(body, rnd.choice([4 << 10, 64 << 10, 1 << 20])):
                        sock.sendall(part)
                else:
                    sock.sendall(head(method, path, key, len(body), encoding))
                    sock.sendall(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before all of it was read: the answer waits in the socket
            first = sock.recv(64)
            buffer, end = bytearray(256 << 10), time.monotonic() + ANSWER_S
            sock.settimeout(0.5)
            try:
                while first and time.monotonic() < end and sock.recv_into(buffer):
                    pass
            except TimeoutError:
                pass
            return first[9:12].decode("latin-1") if first else "closed"

    def slow(self, rnd, method, path, key, body) -> str:
        whole, lasts = rnd.random() < 0.4, rnd.uniform(1.0, 3.5)
        part = rnd.choice([0, 10, len(body) // 2, len(body) * 9 // 10])
        open_ones: list[tuple[socket.socket, memoryview]] = []
        try:
            for _ in range(rnd.choice([1, 2, 3, 6])):
                sock = self.connect()
                sock.settimeout(2.0)
                sock.sendall(head(method, path, key, len(body)))
                sock.sendall(body[:part])
                open_ones.append((sock, memoryview(body)[part:]))
            end = time.monotonic() + lasts
            while time.monotonic() < end and not self.stop.is_set():
                for at, (sock, rest) in enumerate(open_ones):
                    sock.sendall(rest[:20])
                    open_ones[at] = (sock, rest[20:])
                time.sleep(0.1)
            if not whole:
                return "gone"
            sock, rest = open_ones[0]
            sock.sendall(rest)
            first = sock.recv(64)
            return first[9:12].decode("latin-1") if first else "closed"
        finally:
            for sock, _ in open_ones:
                sock.close()

    def stalled(self, rnd, whole: bytes) -> str:
        drips, end = rnd.random() < 0.3, time.monotonic() + rnd.uniform(1.0, 6.0)
        open_ones: list[socket.socket] = []
        try:
            for _ in range(rnd.choice([20, 60, 120])):
                open_ones.append(self.connect(timeout=2.0))
                open_ones[-1].sendall(whole[: rnd.randrange(0, len(whole) - 2)])
            while time.monotonic() < end and not self.stop.is_set():
                time.sleep(0.5)
                for sock in open_ones if drips else ():
                    try:
                        sock.sendall(b"a")
                    except OSError:
                        pass  # it made way for others
            return "gone"
        finally:
            for sock in open_ones:
                sock.close()

    def abandoned(self, rnd, method, path, key, body) -> str:
        for _ in range(rnd.choice([1, 1, 2, 4, 6])):
            if self.stop.is_set():
                break
            with self.connect() as sock:
                sock.sendall(head(method, path, key, len(body)))
                sock.sendall(body if rnd.random() < 0.85 else body[: len(body) * 3 // 4])
                time.sleep(rnd.uniform(0.0, 0.4))
                if rnd.random() < 0.5:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "gone"

    def kept_unread(self, rnd, method, path, key, body) -> str:
        for _ in range(rnd.choice([1, 2, 4])):
            sock = self.connect(receive=4096, timeout=5.0)
            self.unread.append(sock)
            sock.sendall(head(method, path, key, len(body)))
            sock.sendall(body)
            if len(self.unread) > UNREAD_KEPT:
                self.unread.popleft().close()
        return "unread"


class Watch:
    """Asks a small query, the ledger and the list of collections while the attack goes on.

    `within_s` is a row of the bench. Where it is None an answer may take its time, as long as it comes: a 429 is asked again.
    """

    def __init__(self, server: Server, path: str, query: dict, within_s: float | None, every_s: float = 0.05):
        self.server, self.within_s, self.every_s = server, within_s, every_s
        self.small = "POST", f"{path}/points/query?timeout=10", json.dumps(query).encode()
        self.took: list[float] = []
        self.wrong: list[str] = []
        self.stop = threading.Event()
        self.highest, self.highest_at = 0, 0.0  # the charge as it was seen, and when
        asked = [(self.small, every_s), (("GET", "/memory", b""), 0.5), (("GET", "/collections", b""), 0.5)]
        self.threads = [threading.Thread(target=self.run, args=args, daemon=True) for args in asked]
        self.threads.append(threading.Thread(target=self.look, daemon=True))
        for thread in self.threads:
            thread.start()

    def ask(self, connection: Connection, what) -> int:
        method, path, body = what
        return connection.send(head(method, path, READ_KEY, len(body)) + body).status

    def run(self, what, every_s: float) -> None:
        connection, patience = Connection(self.server.port, timeout=30), 0
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                status = self.ask(connection, what)
            except OSError as error:
                status = type(error).__name__
            took = time.monotonic() - start
            if self.stop.is_set():
                break
            self.took.append(took)
            late = self.within_s is not None and (took > self.within_s or status != 200)
            patience = patience + 1 if status != 200 else 0
            if late or patience >= 6 or (status not in (200, 429) and self.within_s is None):
                self.wrong.append(f"{what[1].split('?')[0]}: {status} after {took:.2f} s")
                if not self.server.alive():
                    return
            self.stop.wait(every_s)
        connection.close()

    def look(self) -> None:
        """Notes when the charge is highest."""
        while not self.stop.wait(0.01):
            try:
                charge = self.server.charge()
            except OSError:
                continue
            if charge > self.highest:
                self.highest, self.highest_at = charge, time.time()

    def end(self) -> list[str]:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        return self.wrong
