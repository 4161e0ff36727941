"""Provide one end of a connection without threads and sockets, for ``Network``."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from ..config import Config
from ..exceptions import (
    CloseCode,
    ConnectionClosedError,
    RemoteProtocolError,
    WsmuxError,
    closed_error,
    protocol_failure,
)
from ..protocols import events as ev
from ..protocols.base import MuxProtocol, Role
from ..protocols.bymux_state import BymuxState
from ..protocols.framing import Framing, Opcode, Received, decode_close, encode_close
from ..protocols.registry import wire
from .network import End

__all__ = ["MuxEnd"]


class MuxEnd(End):
    """Drive the pure machine of a wire, and its framing, as a connection does.

    Streams of the peer are accepted, and received bytes are read at once. Nothing blocks: written
    bytes are sent as credit allows, while ``Network.run`` moves them.

    Args:
        role: ``"client"`` or ``"server"``.
        protocol: the name of a wire.
        carrier: ``"websocket"`` frames as after its handshake, ``"bytes"`` as on a plain socket.
            The handshake itself is not included: the libraries perform it, on real sockets.
        config, state: as for ``wsmux.connect``.

    Attributes:
        machine, framing: the pure parts; output of direct calls to the machine is sent by the next
            ``run``.
        events: all events of the machine so far, in order.
        received: the bytes received on each stream.
        ended: the streams whose peer has ended its half cleanly.
        failed: the streams whose peer has aborted its half, or refused them.
        pongs: the values of the pings that were answered.
        error: why the connection ended; ``None`` while it is open. Set once.

    Raises:
        ValueError: the role or the wire is unknown.
    """

    def __init__(
        self,
        role: Role | str,
        protocol: str = "wsmux",
        *,
        carrier: Literal["websocket", "bytes"] = "websocket",
        config: Config | None = None,
        state: BymuxState | None = None,
    ) -> None:
        self.config: Config = config or Config()
        spoken = wire(protocol)
        make = spoken.over_websocket if carrier == "websocket" else spoken.over_bytes
        parts: tuple[Framing, MuxProtocol] = make(Role(role), self.config, state)
        self.framing: Framing
        self.machine: MuxProtocol
        self.framing, self.machine = parts
        self.events: list[ev.Event] = []
        self.received: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.failed: set[int] = set()
        self.pongs: list[int] = []
        self.error: WsmuxError | None = None
        self._now = 0.0
        self._writing: dict[int, bytearray] = {}  # bytes waiting for credit
        self._ending: set[int] = set()  # to be closed after them
        self._out: list[bytes] = []
        self._close_sent = self._heard_close = self._over = False

    # Methods for tests

    def open_stream(self) -> int:
        """Open a stream and return its id.

        Raises:
            RuntimeError: the wire does not permit one now.
        """
        if not self.machine.may_open():
            raise RuntimeError("no stream may be opened before the peer permits it")
        stream_id = self.machine.open_stream()
        self._settle()
        return stream_id

    def write(self, stream_id: int, data: bytes) -> None:
        """Send bytes on a stream once there is credit; dropped if the peer stops reading."""
        self._writing.setdefault(stream_id, bytearray()).extend(data)
        self._settle()

    def close_write(self, stream_id: int) -> None:
        """End the writing half after the bytes written."""
        self._ending.add(stream_id)
        self._settle()

    def reset(self, stream_id: int, code: int = 0) -> None:
        """Reset both halves of a stream."""
        self._forget(stream_id)
        self.machine.reset_write(stream_id, code)
        self.machine.reset_read(stream_id, code)
        self._settle()

    def ping(self, value: int) -> None:
        """Send a ping of the wire if it has pings, otherwise of the framing."""
        if self.machine.may_ping():
            self.machine.ping(value)
        else:
            self._out.append(self.framing.encode_control(Opcode.PING, value.to_bytes(8, "big")))
        self._settle()

    def go_away(self, code: int = 0) -> None:
        """Accept no more streams from the peer."""
        self.machine.go_away(code)
        self._settle()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection after the bytes sent; bytes waiting for credit are dropped."""
        if self.error is None:
            self.error = closed_error(code, reason, "local")
            self.machine.close_notice(code)
            self._collect()
            self._send_close(code, reason)
            if not self.framing.has_controls:
                self._over = True

    # Methods for the network

    def receive(self, data: bytes, now: float) -> None:
        """See ``End``."""
        self._now = self.machine.now = now
        view = memoryview(data)
        while view and not self._over and self.framing.failure is None:
            target = self.framing.get_buffer()
            size = min(len(target), len(view))
            target[:size] = view[:size]
            view = view[size:]
            for received in self.framing.received(size):
                self._handle(received)
        if self.framing.failure is not None:
            self._fail(self.framing.failure)
        if self.error is None:
            self._settle()

    def end_of_file(self, now: float) -> None:
        """See ``End``."""
        self._now = now
        self._over = True
        if self.error is None:
            lost = ConnectionClosedError(
                CloseCode.ABNORMAL_CLOSURE, "the peer ended the connection", None
            )
            clean = self.machine.close_notice_came()
            self.error = closed_error(CloseCode.NORMAL_CLOSURE, "", "remote") if clean else lost

    def lost(self, error: OSError, now: float) -> None:
        """See ``End``."""
        self._now = now
        self._over = True
        self._out.clear()
        if self.error is None:
            self.error = ConnectionClosedError(
                CloseCode.ABNORMAL_CLOSURE, error.strerror or str(error), None
            )
            self.error.__cause__ = error

    def output(self, now: float) -> bytes:
        """See ``End``."""
        self._now = self.machine.now = now
        if self.error is None:
            self._settle()
        sent = b"".join(self._out)
        self._out.clear()
        return sent

    def output_ended(self) -> bool:
        """See ``End``."""
        both_closed = self._close_sent and self._heard_close
        return self._over or (both_closed and not self._out)

    def next_timer(self) -> float | None:
        """See ``End``."""
        return None if self.error is not None else self.machine.next_timer()

    def handle_timer(self, now: float) -> None:
        """See ``End``."""
        self.machine.handle_timer(now)
        self._settle()

    def _handle(self, received: Received) -> None:
        kind, data = received
        if kind is Opcode.PING:
            self._out.append(self.framing.encode_control(Opcode.PONG, bytes(data)))
        elif kind is Opcode.PONG:
            self.pongs.append(int.from_bytes(data, "big"))
        elif kind is Opcode.CLOSE:
            self._close_received(bytes(data))
        elif self.error is None:
            try:
                self.machine.receive_data(data)
                self._apply()
            except RemoteProtocolError as error:
                self._apply()
                self._fail(error)

    def _close_received(self, payload: bytes) -> None:
        self._heard_close = True
        try:
            code, reason = decode_close(payload)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        if self.error is None:
            self.error = closed_error(code, reason, "remote")
        self._send_close(code, "")

    def _fail(self, failure: RemoteProtocolError) -> None:
        if self.error is None:
            self.error = protocol_failure(failure)
            self._collect()
            self._send_close(failure.code, str(failure))
            self._over = True

    def _send_close(self, code: int, reason: str) -> None:
        if not self._close_sent:
            self._close_sent = True
            payload = encode_close(code, reason)
            self._out.append(self.framing.encode_control(Opcode.CLOSE, payload))

    def _settle(self) -> None:
        """Send as much as credit allows, and process the machine's events."""
        self._apply()
        for stream_id, data in list(self._writing.items()):
            while data and self.machine.credit(stream_id):
                size = self.machine.send_data(stream_id, bytes(data))
                del data[:size]
            if not data:
                del self._writing[stream_id]
        for stream_id in sorted(self._ending - self._writing.keys()):
            self._ending.discard(stream_id)
            self.machine.close_write(stream_id, self._now)
        self._apply()
        self._collect()

    def _collect(self) -> None:
        for message in self.machine.control_to_send() + self.machine.data_to_send():
            self._out.append(b"".join(self.framing.encode(message)))

    def _apply(self) -> None:
        while events := self.machine.events():
            for event in events:
                self.events.append(event)
                self._note(event)

    def _note(self, event: ev.Event) -> None:
        match event:
            case ev.StreamOpened(stream_id):
                self.machine.accept(stream_id, self.config.receive_window)
            case ev.DataReceived(stream_id, data):
                self.received[stream_id] += data
                self.machine.consumed(stream_id, len(data))
            case ev.StreamEnded(stream_id):
                self.ended.add(stream_id)
            case ev.StreamAborted(stream_id=stream_id) | ev.StreamRejected(stream_id=stream_id):
                self.failed.add(stream_id)
            case ev.PongReceived(value=value):
                self.pongs.append(value)
        if isinstance(event, ev.WriteStopped | ev.StreamRejected | ev.StreamFinished):
            self._forget(event.stream_id)

    def _forget(self, stream_id: int) -> None:
        self._writing.pop(stream_id, None)
        self._ending.discard(stream_id)
