"""One end of River by hand: any bytes, any fields; shares no code with the library."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgpack

from ..raw_peer import BINARY, CLOSE_FRAME, read_head, request, response
from .procedures import WAIT

__all__ = [
    "ACK",
    "CANCEL",
    "CLOSED",
    "CLOSE",
    "NO_CANCEL",
    "OPEN",
    "Fields",
    "RawRiver",
    "RawServer",
    "cancel",
    "ok",
]

Fields = dict[str, Any]

ACK, OPEN, CANCEL, CLOSED = 1, 2, 4, 8

CLOSE: Fields = {"type": "CLOSE"}

NO_SUBPROTOCOL: dict[str, str | None] = {"Sec-WebSocket-Protocol": None}

# What a carrier without closing codes ends with.
END_OF_FILE = 0


def ok(value: Any) -> Fields:
    return {"ok": True, "payload": value}


def cancel(code: str = "CANCEL", message: str = "by hand") -> Fields:
    return {"ok": False, "payload": {"code": code, "message": message}}


class RawRiver:
    """Hold one end of a connection.

    Attributes:
        seq, ack: what the next message says unless the test does; a message that is received must
            have ``ack`` for its number.
    """

    def __init__(
        self, sock: socket.socket, *, websocket: bool, codec: str, client: bool, own: str, peer: str
    ) -> None:
        sock.settimeout(WAIT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.websocket = websocket
        self.codec = codec
        self.client = client
        self.own, self.peer = own, peer
        self.seq = self.ack = 0

    @classmethod
    def dial(cls, port: int, codec: str, *, websocket: bool, own: str = "raw") -> Self:
        """Connect to a server, as far as its carrier goes."""
        sock = socket.create_connection(("127.0.0.1", port), WAIT)
        if websocket:
            sock.sendall(request(f"127.0.0.1:{port}", NO_SUBPROTOCOL))
            assert read_head(sock)[0].startswith("HTTP/1.1 101 ")
        return cls(sock, websocket=websocket, codec=codec, client=True, own=own, peer="SERVER")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # Bytes

    def frame(self, data: bytes, opcode: int = BINARY) -> bytes:
        """Return one message of the carrier; ``opcode`` is for WebSockets."""
        if not self.websocket:
            return len(data).to_bytes(4, "big") + data
        masked = 128 if self.client else 0
        if len(data) < 126:
            head = bytes((128 | opcode, masked | len(data)))
        elif len(data) < 2**16:
            head = bytes((128 | opcode, masked | 126)) + len(data).to_bytes(2, "big")
        else:
            head = bytes((128 | opcode, masked | 127)) + len(data).to_bytes(8, "big")
        return head + bytes(4 if masked else 0) + data  # a mask of zeros changes nothing

    def send_bytes(self, data: bytes, opcode: int = BINARY) -> None:
        self.sock.sendall(self.frame(data, opcode))

    def announce(self, size: int) -> None:
        """Send the head of a message of so many bytes, at least 64 KiB, and nothing of it."""
        if not self.websocket:
            self.sock.sendall(size.to_bytes(4, "big"))
            return
        masked = 128 if self.client else 0
        head = bytes((128 | BINARY, masked | 127)) + size.to_bytes(8, "big")
        self.sock.sendall(head + bytes(4 if masked else 0))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise EOFError(f"end of file after {len(data)} of {count} bytes")
            data += chunk
        return data

    def recv_frame(self) -> tuple[int, bytes]:
        """Return the opcode and the content of the next message of the carrier."""
        if not self.websocket:
            return BINARY, self._exactly(int.from_bytes(self._exactly(4), "big"))
        first, second = self._exactly(2)
        size = second & 127
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        key = self._exactly(4) if second & 128 else b""
        data = self._exactly(size)
        if key:
            pad = (key * (size // 4 + 1))[:size]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
        return first & 15, data

    def recv_end(self) -> int:
        """Return the code that the connection ends with, which must be what comes next."""
        try:
            opcode, data = self.recv_frame()
        except EOFError:
            return END_OF_FILE
        assert opcode == CLOSE_FRAME, f"{data!r} came instead of the end"
        with suppress(OSError):
            self.send_bytes(data, CLOSE_FRAME)
        return int.from_bytes(data[:2], "big")

    @property
    def clean(self) -> int:
        """What ``recv_end`` returns when the other side closes as River does."""
        return 1000 if self.websocket else END_OF_FILE

    def close(self) -> None:
        """End the connection as River does."""
        if self.websocket:
            self.send_bytes((1000).to_bytes(2, "big"), CLOSE_FRAME)
        else:
            self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # Messages

    def pack(self, fields: Any) -> bytes:
        if self.codec == "json":
            return json.dumps(fields).encode()
        packed: bytes = msgpack.packb(fields)
        return packed

    def fields(self, changed: Fields) -> Fields:
        """Return a message with some fields of its own; a value of ``...`` leaves one out."""
        fields: Fields = {
            "id": f"message-{self.seq}",
            "from": self.own,
            "to": self.peer,
            "seq": self.seq,
            "ack": self.ack,
            "streamId": "stream",
            "controlFlags": 0,
            "payload": None,
        }
        return {name: value for name, value in (fields | changed).items() if value is not ...}

    def send(self, changed: Fields) -> None:
        """Send one message, and count it if it has the number that is its turn."""
        fields = self.fields(changed)
        self.send_bytes(self.pack(fields))
        self.seq += fields.get("seq") == self.seq

    def recv_any(self) -> Fields:
        """Return the next message, whatever its number."""
        opcode, data = self.recv_frame()
        assert opcode == BINARY, f"a frame of opcode {opcode} came: {data!r}"
        fields: Fields = json.loads(data) if self.codec == "json" else msgpack.unpackb(data)
        assert (fields["from"], fields["to"]) == (self.peer, self.own)
        return fields

    def recv(self) -> Fields:
        """Return the next message that is not an acknowledgement only."""
        while True:
            fields = self.recv_any()
            assert fields["seq"] == self.ack, f"{fields} came when {self.ack} was wanted"
            self.ack += 1
            if not fields["controlFlags"] & ACK:
                return fields

    # Handshakes

    def hello(self, session: str, changed: Fields | None = None, **envelope: Any) -> None:
        """Ask for a session, with the counters there are."""
        state = {"nextExpectedSeq": self.ack, "nextSentSeq": self.seq}
        payload = {
            "type": "HANDSHAKE_REQ",
            "protocolVersion": "v2.0",
            "sessionId": session,
            "expectedSessionState": state,
        }
        payload = {n: v for n, v in (payload | (changed or {})).items() if v is not ...}
        fields = self.fields({"seq": 0, "ack": 0, "payload": payload, "streamId": "hs"} | envelope)
        self.send_bytes(self.pack(fields))

    def status(self) -> Fields:
        """Return what the server answers to it."""
        fields = self.recv_any()
        assert (fields["seq"], fields["ack"], fields["controlFlags"]) == (0, 0, 0)
        assert fields["payload"]["type"] == "HANDSHAKE_RESP"
        status: Fields = fields["payload"]["status"]
        return status

    def attach(self, session: str, changed: Fields | None = None) -> None:
        """Shake hands, which must go well."""
        self.hello(session, changed)
        assert self.status() == {"ok": True, "sessionId": session}

    def answer(self, payload: Any, **envelope: Any) -> None:
        """Answer a handshake with anything."""
        fields = {"seq": 0, "ack": 0, "payload": payload, "streamId": "hs"} | envelope
        self.send_bytes(self.pack(self.fields(fields)))

    def welcome(self, session: str) -> None:
        self.answer({"type": "HANDSHAKE_RESP", "status": {"ok": True, "sessionId": session}})

    # Calls

    def open(self, stream: str, procedure: str, init: Any = None, flags: int = 0) -> None:
        names = {"serviceName": "test", "procedureName": procedure}
        self.send({"streamId": stream, "controlFlags": OPEN | flags, "payload": init, **names})

    def exchange(self, stream: str, value: Any) -> None:
        """Have a value echoed, which must be what comes next."""
        self.send({"streamId": stream, "payload": value})
        fields = self.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, 0), fields
        assert fields["payload"] == ok(value)


class RawServer:
    """Listen, and be the other end of clients by hand."""

    def __init__(self, codec: str, *, websocket: bool) -> None:
        self.codec = codec
        self.websocket = websocket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT)
        port = self._listener.getsockname()[1]
        self.url = f"{'ws' if websocket else 'tcp'}://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def accept(
        self,
        before: Callable[[], object] | None = None,
        headers: dict[str, str | None] = NO_SUBPROTOCOL,
    ) -> RawRiver:
        """Return the next connection, as far as its carrier goes; ``before`` comes before that.

        ``headers`` differ in the answer to a WebSocket.
        """
        sock, _ = self._listener.accept()
        sock.settimeout(WAIT)
        if before is not None:
            before()
        if self.websocket:
            key = read_head(sock)[1]["sec-websocket-key"]
            sock.sendall(response(key, headers))
        return RawRiver(
            sock, websocket=self.websocket, codec=self.codec, client=False, own="SERVER", peer=""
        )

    def refuse(self) -> None:
        """Refuse the next upgrade."""
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(WAIT)
            read_head(sock)
            sock.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    def greeted(self) -> tuple[RawRiver, Fields]:
        """Return the next connection, and what the client says first.

        Its ``attempt`` does not stand in ``expectedSessionState``, but beside it.
        """
        peer = self.accept()
        opcode, data = peer.recv_frame()
        assert opcode == BINARY
        fields: Fields = json.loads(data) if self.codec == "json" else msgpack.unpackb(data)
        peer.peer = fields["from"]
        hello: Fields = fields["payload"]
        return peer, {**hello, "attempt": hello["expectedSessionState"].pop("attempt")}

    def attached(self) -> RawRiver:
        """Return the next connection, with hands shaken; its messages are counted from 0."""
        peer, hello = self.greeted()
        peer.welcome(hello["sessionId"])
        return peer


NO_CANCEL: dict[str, Any] = {
    "null": None,
    "number": 1,
    "text": "CANCEL",
    "array": [],
    "empty": {},
    "close": CLOSE,
    "success": ok(1),
    "without_payload": {"ok": False},
    "empty_error": {"ok": False, "payload": {}},
    "without_message": {"ok": False, "payload": {"code": "CANCEL"}},
    "without_code": {"ok": False, "payload": {"message": "text"}},
    "code_a_number": {"ok": False, "payload": {"code": 1, "message": "text"}},
    "message_null": {"ok": False, "payload": {"code": "CANCEL", "message": None}},
    "ok_missing": {"payload": {"code": "CANCEL", "message": "text"}},
    "ok_text": {"ok": "false", "payload": {"code": "CANCEL", "message": "text"}},
}
