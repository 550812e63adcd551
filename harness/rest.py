"""A light REST client: one connection, bodies prepared beforehand, no library between socket and clock.

qdrant-client costs more processor time than the server that it asks; where a figure is about the server, load comes
from here. One `Connection` belongs to one thread.
"""

import json
import socket
import time


class Answer:
    __slots__ = ("status", "headers", "body")

    def __init__(self, status: int, headers: dict[str, str], body: bytes):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def result(self):
        return self.json().get("result")

    @property
    def error(self) -> str:
        try:
            status = self.json().get("status")
        except ValueError:
            return self.body[:200].decode("utf-8", "replace")
        return status.get("error", "") if isinstance(status, dict) else ""


def request_bytes(method: str, path: str, body: bytes = b"", host: str = "localhost") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 60.0):
        self.host, self.port, self.timeout = host, port, timeout
        self.socket: socket.socket | None = None
        self.rest = b""
        self.reopened = 0  # times that a kept connection turned out to be closed

    def open(self) -> socket.socket:
        if self.socket is None:
            self.socket = socket.create_connection((self.host, self.port), self.timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.rest = b""
        return self.socket

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def send(self, raw: bytes) -> Answer:
        """One prepared request; on any failure the connection is closed and the error goes on."""
        try:
            fresh = self.socket is None
            sock = self.open()
            try:
                sock.sendall(raw)
                return self._receive(sock)
            except (BrokenPipeError, ConnectionResetError):
                # A refusal may be answered before the whole body is read; the answer then waits in the socket.
                try:
                    return self._receive(sock)
                except OSError:
                    if fresh:
                        raise
                    self.reopened += 1
                    self.close()  # an idle connection that the server had closed: once more on a new one
                    sock = self.open()
                    sock.sendall(raw)
                    return self._receive(sock)
        except BaseException:
            self.close()
            raise

    def _receive(self, sock: socket.socket) -> Answer:
        data = self.rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            data = self._more(sock, data)
        lines = data[:end].decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = data[end + 4 :]
        if headers.get("transfer-encoding") == "chunked":
            body = self._chunks(sock, body)
        else:
            length = int(headers.get("content-length", 0))
            parts, have = [body], len(body)
            while have < length:
                part = sock.recv(min(1 << 20, length - have))
                if not part:
                    raise ConnectionResetError("the server closed the connection inside a body")
                parts.append(part)
                have += len(part)
            body = b"".join(parts)
            body, self.rest = body[:length], body[length:]
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, headers, body)

    @staticmethod
    def _more(sock: socket.socket, data: bytes) -> bytes:
        part = sock.recv(1 << 16)
        if not part:
            raise ConnectionResetError("the server closed the connection")
        return data + part

    def _chunks(self, sock: socket.socket, data: bytes) -> bytes:
        body = b""
        while True:
            while (end := data.find(b"\r\n")) < 0:
                data = self._more(sock, data)
            size = int(data[:end].split(b";")[0], 16)
            data = data[end + 2 :]
            while len(data) < size + 2:
                data = self._more(sock, data)
            body, data = body + data[:size], data[size + 2 :]
            if size == 0:
                self.rest = data
                return body

    def ask(self, method: str, path: str, body=None) -> Answer:
        raw = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        return self.send(request_bytes(method, path, raw))

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def must(self, method: str, path: str, body=None):
        """The result, or an error that names what was asked."""
        answer = self.ask(method, path, body)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.error}")
        return answer.result


def wait_green(connection: Connection, collection: str, limit_s: float, tick=None, every_s: float = 0.5) -> float:
    """Seconds until the collection is green; `tick(info)` is called at each look."""
    start = time.monotonic()
    while True:
        info = connection.must("GET", f"/collections/{collection}")
        waited = time.monotonic() - start
        if tick is not None:
            tick(info)
        if info["status"] == "green":
            return waited
        if info["status"] == "red":
            raise RuntimeError(f"collection {collection} is red: {info.get('optimizer_status')}")
        if waited > limit_s:
            raise TimeoutError(f"collection {collection} is still {info['status']} after {waited:.0f} s: {info}")
        time.sleep(every_s)


def points_body(first_id: int, vectors, payloads=None) -> bytes:
    """Columnar upsert body. Nine digits give back every bit of an f32."""
    rows = ",".join("[" + ",".join(f"{value:.9g}" for value in row) + "]" for row in vectors.tolist())
    ids = ",".join(str(first_id + i) for i in range(len(vectors)))
    tail = "" if payloads is None else ',"payloads":' + json.dumps(payloads, separators=(",", ":"))
    return f'{{"batch":{{"ids":[{ids}],"vectors":[{rows}]{tail}}}}}'.encode()
