"""Floods of what costs the sender nothing end the connection with 1008, on every wire.

The budgets are those of ``wsmux.Config``; what each flood is bounded by stands in its reason.
"""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

import pytest

import wsmux

from ..helpers import raw_peer
from ..helpers.attacks import FLOODS, PAST_CREDIT, RESETS, WAIT, attacked, opening_of, send_all
from ..helpers.inside import multiplexer_of
from ..helpers.wires import NAMES

pytestmark = pytest.mark.hang_bound(120.0)

ALL = [pytest.param(wire, name, id=f"{wire}-{name}") for wire in FLOODS for name in FLOODS[wire]]
MIB = 1024 * 1024


def memory() -> int:
    """Return the bytes that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(("protocol", "name"), ALL)
def test_a_flood_ends_the_connection_after_a_few_hundred(protocol: str, name: str) -> None:
    flood = FLOODS[protocol][name]
    with attacked(protocol) as victim:
        victim.drain()
        assert send_all(victim.sock, flood.begin)
        send_all(victim.sock, b"".join(flood.more(n) for n in range(400)))
        victim.check_end(flood.reason)


@pytest.mark.parametrize(("protocol", "name"), ALL)
def test_what_the_budget_covers_is_borne(protocol: str, name: str) -> None:
    flood = FLOODS[protocol][name]
    few = 5 if "credit" in name else 100
    with attacked(protocol) as victim:
        victim.drain()
        data = flood.begin + b"".join(flood.more(n) for n in range(few))
        assert send_all(victim.sock, data)
        raw_peer.wait_for(lambda: victim.connection.stats().bytes_received == len(data))
        assert victim.connection.error is None


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux"])
def test_a_flood_of_opened_and_reset_streams_ends_the_connection(protocol: str) -> None:
    with attacked(protocol) as victim:
        victim.drain()
        send_all(victim.sock, b"".join(RESETS[protocol](n) for n in range(2000)))
        victim.check_end("resets: Config.max_resets is 1000")


@pytest.mark.parametrize("protocol", NAMES)
def test_thousands_of_streams_opened_at_once_by_a_peer_that_reads_are_borne(protocol: str) -> None:
    many = 4000
    config = wsmux.Config(max_streams=many, max_unaccepted=many)
    with attacked(protocol, config) as victim:
        victim.drain()
        with multiplexer_of(victim.connection).mutex:  # all are there before any is looked at
            assert send_all(victim.sock, b"".join(opening_of(protocol, n) for n in range(many)))
        raw_peer.wait_for(lambda: victim.connection.stats().streams == many)
        assert victim.connection.error is None


@pytest.mark.parametrize("protocol", NAMES)
def test_resets_free_no_place_of_a_handler_that_runs_on(protocol: str) -> None:
    release, lock = threading.Event(), threading.Lock()
    running: list[int] = []

    def handle(stream: wsmux.Stream) -> None:
        with lock:
            running.append(stream.id)
        release.wait(WAIT)

    with wsmux.serve(
        protocols=[protocol], transport="tcp", stream_handler=handle, workers=5
    ) as server:
        with raw_peer.socket.create_connection((server.host, server.port)) as sock:
            openings = [opening_of(protocol, n) for n in range(5)]
            send_all(sock, b"".join(openings))
            raw_peer.wait_for(lambda: len(running) == 5)
            resets = [RESETS[protocol](n)[len(openings[n]) :] for n in range(5)]
            send_all(sock, b"".join(resets))
            send_all(sock, b"".join(RESETS[protocol](n) for n in range(5, 100)))
            (connection,) = server.connections
            raw_peer.wait_for(lambda: connection.stats().streams == 0)
            assert len(running) == 5
        release.set()


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux"])
def test_refused_streams_count_as_provoked_resets(protocol: str) -> None:
    with attacked(protocol, wsmux.Config(max_unaccepted=1, max_resets=20)) as victim:
        victim.drain()
        openings = [opening_of(protocol, n) for n in range(32)]
        send_all(victim.sock, b"".join(openings[:22]))
        raw_peer.wait_for(lambda: victim.connection.stats().streams_refused == 21)
        assert victim.connection.error is None
        send_all(victim.sock, b"".join(openings[22:]))
        victim.check_end("streams that had to be refused: Config.max_resets is 20")


@pytest.mark.parametrize("protocol", NAMES)
def test_one_byte_past_the_credit_is_seen_on_the_frame(protocol: str) -> None:
    opening, data = PAST_CREDIT[protocol]
    with attacked(protocol, wsmux.Config(receive_window=4096)) as victim:
        victim.drain()
        send_all(victim.sock, opening)
        stream = victim.connection.accept_stream(timeout=WAIT)
        window = 4096 if protocol != "yamux" else 256 * 1024
        send_all(victim.sock, data(window) + data(1))
        if protocol in ("wsmux", "js-ws"):
            stream.timeout = WAIT
            with pytest.raises(wsmux.StreamReset, match="1 bytes with 0 bytes of credit"):
                stream.readall()
            assert victim.connection.error is None
        else:
            reason = "1 bytes on stream 0 with 0" if protocol == "bymux" else "1 bytes with 0"
            victim.check_end(reason, 1002)
        assert victim.connection.stats().unread_bytes <= window


@pytest.mark.parametrize("protocol", NAMES)
def test_going_on_past_the_credit_ends_the_connection(protocol: str) -> None:
    opening, data = PAST_CREDIT[protocol]
    with attacked(protocol) as victim:
        victim.drain()
        send_all(victim.sock, opening)
        if protocol == "bymux":
            raw_peer.wait_for(lambda: victim.connection.stats().streams)
        connection, frame = victim.connection, data(65536)
        before = most = memory()
        for _ in range(100 * MIB // 65536):
            if connection.error is not None or not send_all(victim.sock, frame):
                break
            most = max(most, memory())
        victim.check_end("credit", 1002)
        assert connection.stats().unread_bytes <= connection.config.receive_window
        # The window and the buffer that it is received into, and what the allocator rounds up.
        assert max(most, memory()) - before <= connection.config.receive_window + 4 * MIB


@pytest.mark.parametrize("role", raw_peer.ROLES)
@pytest.mark.parametrize("opcode", [raw_peer.PING, raw_peer.PONG])
def test_a_flood_of_websocket_pings_ends_the_connection(role: str, opcode: int) -> None:
    with raw_peer.meet(role) as met:
        met.peer.send(b"".join(met.peer.frame(opcode, b"x") for _ in range(200)))
        code, reason = met.peer.recv_close()
        assert (code, reason[:14]) == (1008, "too many pings")
        assert isinstance(met.connection.error, wsmux.ConnectionClosedError)
        met.check_bystanders()


@pytest.mark.parametrize("role", raw_peer.ROLES)
@pytest.mark.parametrize("protocol", ["yamux", "bymux"])
def test_a_flood_of_empty_websocket_messages_ends_the_connection(role: str, protocol: str) -> None:
    with raw_peer.meet(role, protocol=protocol) as met:
        met.peer.send(met.peer.frame(raw_peer.BINARY) * 200)
        code, reason = met.peer.recv_close()
        assert code == 1008
        assert "change nothing" in reason


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_100_000_resets_cost_a_second_at_most(
    protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wire = b"".join(RESETS[protocol](n) for n in range(100_000))
    with attacked(protocol) as victim:
        victim.drain()
        before, start = memory(), time.process_time()
        send_all(victim.sock, wire)
        victim.check_end("", 1002, 1008)
        spent, grown = time.process_time() - start, memory() - before
        with capfd.disabled():
            print(f"\n{protocol}: {spent:.3f} s of CPU, {grown / MIB:.1f} MiB")  # noqa: T201
        assert spent <= 1.0
        assert grown <= 8 * MIB


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "name"), ALL)
def test_a_flood_is_over_within_a_second(protocol: str, name: str) -> None:
    flood = FLOODS[protocol][name]
    wire = flood.begin + b"".join(flood.more(n) for n in range(100_000))
    with attacked(protocol) as victim:
        victim.drain()
        before, start = memory(), time.monotonic()
        send_all(victim.sock, wire)
        victim.check_end(flood.reason)
        assert time.monotonic() - start <= 1.0
        assert memory() - before <= 8 * MIB
