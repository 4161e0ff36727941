"""A resumable transport ends as the peer's END says, and keeps a bounded number of messages."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import pytest

from wsmux.config import LEAST_RESUME_BUFFER, Config
from wsmux.exceptions import ConnectionClosed, WsmuxError
from wsmux.protocols.base import Role
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.resumable_framing import ResumableFraming
from wsmux.protocols.resumption import KEPT_OVERHEAD, LEAST_KEPT, Session
from wsmux.runtime.memory import process_memory
from wsmux.transport.resumable_transport import ResumableTransport

from ..helpers.inside import memory_reported
from ..helpers.raw_peer import in_thread
from ..helpers.waiting import wait_for
from ..helpers.websocket_wire import frame

WAIT = 20.0
CONFIG = Config()


class NoCarriers:
    """Find no other carrier; note whether one was asked for."""

    def __init__(self) -> None:
        self.searched = False

    def started(self, transport: ResumableTransport) -> None: ...

    def lost(self, transport: ResumableTransport) -> None:
        self.searched = True
        transport.lose("none is looked for here")

    def found(self, transport: ResumableTransport) -> None: ...

    def ended(self, transport: ResumableTransport) -> None: ...

    def hurry(self) -> None: ...

    def next_attempt(self) -> float | None:
        return None


@dataclass
class Ends:
    """A transport of a server, and the socket of its peer."""

    transport: ResumableTransport
    peer: socket.socket
    carriers: NoCarriers

    def run(self) -> WsmuxError | None:
        """Run the I/O loop to its end, and return why it ended."""
        for _ in self.transport.batches():
            pass
        return self.transport.error


@contextmanager
def joined(config: Config) -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    peer.settimeout(WAIT)
    carriers = NoCarriers()
    session = Session(bytes(16), LEAST_RESUME_BUFFER, 60.0)
    framing = ResumableFraming(Role.SERVER, config.max_message_size, 8, session)
    with peer:
        yield Ends(ResumableTransport(ours, framing, Role.SERVER, config, carriers), peer, carriers)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with joined(CONFIG) as made:
        yield made


END = b"\x06" + (4000).to_bytes(2, "big") + b"bye"


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["reset", "closed", "close frame", "close frame without a code"])
def test_a_session_ends_as_end_says_however_its_carrier_ends(ends: Ends, how: str) -> None:
    """A close frame that is sent again has no reason any more, and perhaps no code."""
    batches = ends.transport.batches()
    ends.peer.sendall(frame(Role.SERVER, Opcode.BINARY, END))
    while ends.transport.session.peer_end is None:
        next(batches)
    if how == "reset":
        reset(ends.peer)
    else:
        if how != "closed":
            payload = b"" if "without" in how else encode_close(4000, "")
            ends.peer.sendall(frame(Role.SERVER, Opcode.CLOSE, payload))
        ends.peer.shutdown(socket.SHUT_WR)
    for _ in batches:
        pass
    error = ends.transport.error
    assert isinstance(error, ConnectionClosed)
    assert (error.code, error.reason, error.side) == (4000, "bye", "remote")
    assert not ends.carriers.searched


def test_a_session_ends_as_end_says_when_a_send_fails_first(ends: Ends) -> None:
    """The thread that sends may notice before the one that reads."""
    batches = ends.transport.batches()
    ends.peer.sendall(frame(Role.SERVER, Opcode.BINARY, END))
    while ends.transport.session.peer_end is None:
        next(batches)
    ends.transport.queue.suspended = True
    for _ in batches:
        pass
    error = ends.transport.error
    assert isinstance(error, ConnectionClosed)
    assert (error.code, error.reason, error.side) == (4000, "bye", "remote")


def test_a_peer_that_acknowledges_nothing_and_causes_answers_is_given_up(ends: Ends) -> None:
    """Data would wait for room; what goes before it does not."""
    session, queue = ends.transport.session, ends.transport.queue
    enough = (2 * session.limit + CONFIG.max_message_size) // LEAST_KEPT + 1
    for _ in range(enough):
        session.keep((b"\x00answer", b""))
    assert queue.has_room_locked(False)
    ends.peer.sendall(frame(Role.SERVER, Opcode.BINARY, b"\x00question"))
    error = ends.run()
    assert isinstance(error, ConnectionClosed)
    assert (error.code, error.side) == (1008, "local")
    assert error.reason == f"{enough} messages are not acknowledged, which exceeds Resume.buffer"
    assert not ends.carriers.searched


def test_a_session_that_closes_without_a_limit_ends_with_its_grace(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer lacks what was written before, and there is no other carrier."""
    transport = ends.transport
    monkeypatch.setattr(ends.carriers, "lost", lambda _: None)
    transport.session.grace = 0.05
    with transport.mutex:
        transport.queue.add_data_locked([(b"\x00x", b"")])
        transport.close_locked(1000, "")
        transport.keep_sending_locked(None)
    transport.flush()
    ends.peer.close()
    assert len(list(islice(transport.batches(), 100))) < 100
    error = transport.error
    assert isinstance(error, ConnectionClosed)
    assert (error.code, error.side) == (1000, "local")


def write_short_messages(transport: ResumableTransport) -> int:
    """Write 10,000 that the peer does not acknowledge, until the end; return how many they were."""
    for number in range(10_000):
        with transport.mutex:
            if transport.error is not None:
                return number
            transport.queue.add_data_locked([(b"\x00x", b"")])
        transport.flush()
    return 10_000


def take_all(peer: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while peer.recv(65536):
            continue


def test_what_is_kept_until_it_is_acknowledged_is_reported() -> None:
    """Nothing else makes the I/O thread look: no byte of the peer, no full socket, and no timer.

    Memory is looked at before a message is added to it.
    """
    with joined(Config(ping_interval=None)) as ends:
        session = ends.transport.session
        running, taking = in_thread(ends.run), in_thread(take_all, ends.peer)
        assert write_short_messages(ends.transport) == 10_000
        wait_for(lambda: len(session.kept) == 10_000)  # the I/O thread may send the rest
        kept = session.allocated()
        assert kept > 2_000_000
        least = kept - session.limit // 4 - (KEPT_OVERHEAD + 2)
        wait_for(lambda: (memory_reported(ends.transport) or 0) > least)
        ends.transport.abort()
        running.result(WAIT)
        taking.result(WAIT)
        assert memory_reported(ends.transport) is None


def test_a_session_that_keeps_the_most_is_given_up() -> None:
    limit = process_memory.total + 1_000_000
    with joined(Config(max_process_buffer=limit)) as made:
        running = in_thread(made.run)
        wait_for(lambda: write_short_messages(made.transport) < 10_000)
        error = running.result(WAIT)
        assert isinstance(error, ConnectionClosed)
        assert (error.code, error.side) == (1008, "local")
        assert f"exceed Config.max_process_buffer: {limit}" in error.reason
