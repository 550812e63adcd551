"""HTTP/2 by hand, so that it can be spoken wrongly: frames as they are asked for, and what comes back counted or left unread."""

import socket
import struct
import time

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message(body: bytes, length: int | None = None, flags: int = 0) -> bytes:
    """A gRPC message; `length`: what it says of itself."""
    return bytes([flags]) + struct.pack(">I", len(body) if length is None else length) + body


class Raw:
    """A connection. `window`: what may come of each answer; `receive`: the socket's buffer."""

    def __init__(self, port: int, window: int = 1 << 20, receive: int | None = None, timeout: float = 5.0):
        self.socket = socket.socket()
        if receive is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.encoder, self.next = hpack.Encoder(), 1
        self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window)))
        self.send(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30)))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self, path: str, more=(), end: bool = False) -> bytes:
        """The frame that begins a call, on the next stream."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")]
        block = self.encoder.encode([*fields, *more])
        self.stream, self.next = self.next, self.next + 2
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), self.stream, block)

    def call(self, path: str, body: bytes, end: bool = True) -> int:
        """A call of so many bytes; those beyond the window that the server gives must wait for it, and are sent all the same."""
        out = self.head(path)
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
        for number, part in enumerate(parts):
            out += frame(DATA, END_STREAM if end and number == len(parts) - 1 else 0, self.stream, part)
        self.send(out)
        return self.stream

    def pour(self, data: bytes, seconds: float) -> int:
        """Sends as much of some bytes on the last stream as the server's windows take in that time; nothing else that comes is looked at. How much."""
        windows, sent, held, end = {0: 65535, self.stream: 65535}, 0, b"", time.monotonic() + seconds
        while sent < len(data) and time.monotonic() < end:
            size = min(8192, len(data) - sent, *windows.values())
            if size > 0:
                self.send(frame(DATA, 0, self.stream, data[sent : sent + size]))
                sent += size
                windows = {stream: window - size for stream, window in windows.items()}
            self.socket.settimeout(0.0001 if size > 0 else 0.05)
            try:
                held += self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            while len(held) >= 9 and len(held) >= 9 + int.from_bytes(held[:3], "big"):
                length = int.from_bytes(held[:3], "big")
                kind, stream = held[3], int.from_bytes(held[5:9], "big")
                if kind == WINDOW and stream in windows:
                    windows[stream] += int.from_bytes(held[9:13], "big")
                if kind in (GOAWAY, RESET):
                    return sent
                held = held[9 + length :]
        self.socket.settimeout(5.0)
        return sent

    def read(self, seconds: float, until: int = GOAWAY) -> dict[int, int]:
        """How many frames of each kind came, up to the first of one kind, or until the connection or the time is over."""
        seen: dict[int, int] = {}
        end, held = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                return seen
            if not data:
                seen[-1] = 1
                return seen
            held += data
            while len(held) >= 9 and len(held) >= 9 + int.from_bytes(held[:3], "big"):
                kind, length = held[3], int.from_bytes(held[:3], "big")
                seen[kind] = seen.get(kind, 0) + 1
                held = held[9 + length :]
                if kind == until:
                    return seen
        return seen

    def close(self) -> None:
        self.socket.close()
