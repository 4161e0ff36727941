"""Have peers write to the log: at most a line a second and cause, none of it theirs (H21).

Each attack sends what a line of the log would show: line ends that begin a line of the attacker's,
terminal codes, kilobytes of text, a secret in the payload.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO

import pytest

import wsmux
from wsmux import rpc
from wsmux.bus.relay.rate_limiter import FixedWindow
from wsmux.bus.wire.address import Address
from wsmux.runtime.logs import forget

from ..helpers.bus.relays import Node, metric, relay, served
from ..helpers.raw_peer import BINARY, WAIT, raw_client, read_head, request, wait_for
from ..helpers.rpc.raw_river import RawRiver

# What an attacker would have stand at the start of a line, in what prints and what does not.
FORGED = "CRITICAL root password changed"
NASTY = f"\x1b[2J\x9b1m\x85{FORGED}\t\x7f"
IN_A_HEADER = f"\x9b1m\x85{FORGED}\t."  # control characters of ASCII are refused unread
SECRET = "payload-of-the-user"

# Longest line: two values of 500 characters, and some words.
LONGEST = 1300


class Log:
    """Hold what an application's log shows of the package."""

    def __init__(self) -> None:
        self._text = StringIO()
        self._began = time.monotonic()
        self.handler = logging.StreamHandler(self._text)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def check(self, least: int = 1) -> list[str]:
        """Check every line, and how many there are of each cause; return them."""
        seconds = time.monotonic() - self._began
        lines = self._text.getvalue().split("\n")[:-1]
        starts = ("INFO wsmux", "WARNING wsmux", "ERROR wsmux", "  | ")
        for line in lines:
            assert line.isprintable()
            assert line.startswith(starts), line
            assert len(line) < LONGEST
            assert SECRET not in line
        heads = [line for line in lines if not line.startswith("  | ")]
        causes = {" ".join(line.split()[:2]) for line in heads}
        # What the attacks provoke has one cause for each logger and level, and two at the relay.
        assert least <= len(heads) <= (2 * len(causes)) * (seconds + 1)
        return heads


@pytest.fixture
def log() -> Iterator[Log]:
    made, root = Log(), logging.getLogger("wsmux")
    root.addHandler(made.handler)
    root.setLevel(logging.INFO)
    yield made
    root.removeHandler(made.handler)
    root.setLevel(logging.NOTSET)


def refused_handshakes(count: int) -> None:
    with wsmux.serve(wsmux.Connection.wait_closed) as server:
        own = f"127.0.0.1:{server.port}"
        data = request(own, {"Origin": f"http://{IN_A_HEADER}{'x' * 20_000}", "Cookie": SECRET})
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", server.port), WAIT) as sock:
                sock.sendall(data)
                assert " 403 " in read_head(sock)[0]


def broken_rules(count: int) -> None:
    with wsmux.serve(wsmux.Connection.wait_closed) as server:
        for _ in range(count):
            with raw_client(server.port) as peer:
                peer.send_frame(BINARY, b"\x00\x63" + SECRET.encode())
                assert peer.recv_close()[0] == 1002


def failing_handlers(count: int) -> None:
    """Have an application's own error repeat what the peer sent, as they do."""

    def handle(stream: wsmux.Stream) -> None:
        name = stream.read(64).decode("latin-1")
        raise ValueError(f"no such file: {name}")

    with wsmux.serve(stream_handler=handle) as server, wsmux.connect(server.url) as client:
        for _ in range(count):
            with client.open_stream(WAIT) as stream, suppress(wsmux.StreamError):
                stream.timeout = WAIT
                stream.write(f"\n{FORGED}{NASTY}"[:60].encode("latin-1"))
                stream.read(1)


def failing_calls(count: int) -> None:
    service = rpc.Service("files")

    @service.rpc(init={"type": "string"}, response={})
    def get(ctx: rpc.Context, name: str) -> None:
        raise KeyError(f"{name}\n{FORGED}")

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        for _ in range(count):
            with pytest.raises(rpc.RiverError):
                client.rpc("files", "get", f"\n{NASTY}", timeout=WAIT)


def relay_floods(count: int) -> None:
    made = relay(limiter=FixedWindow(20, 10**6, window=1e12), pause=lambda _: None)
    with served(made) as server, Node(server, 1, f"s\n{FORGED}") as one:
        for _ in range(count):
            one.ask(Address(9, f"t\n{FORGED}"), tags=NASTY)
            one.ask(Address(3), now=1, plain=SECRET.encode())
        wait_for(lambda: metric(server, "relay_message_rx") == 2 * count, "all messages")


def broken_sessions(count: int) -> None:
    with rpc.serve([], codec="json") as server:
        for number in range(count):
            with RawRiver.dial(server.port, "json", websocket=True, own=f"raw-{number}") as peer:
                peer.attach(f"{SECRET}-{number}")
                peer.send({"from": f"\n{FORGED}{NASTY}", "payload": SECRET})
                assert peer.recv_end() == peer.clean


def refused_sessions(count: int) -> None:
    with rpc.serve([], codec="json") as server:
        for _ in range(count):
            with RawRiver.dial(server.port, "json", websocket=True, own=f"\n{NASTY}") as peer:
                state = {"nextExpectedSeq": 1, "nextSentSeq": 1}
                peer.hello(f"\n{FORGED}{SECRET}", {"expectedSessionState": state})
                assert peer.status()["code"] == "SESSION_STATE_MISMATCH"
                assert peer.recv_end() == peer.clean


ATTACKS = [
    refused_handshakes,
    broken_rules,
    failing_handlers,
    failing_calls,
    broken_sessions,
    refused_sessions,
    relay_floods,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_gets_a_line_a_second_and_none_of_its_own(
    attack: Callable[[int], None], log: Log
) -> None:
    attack(40)
    log.check()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"from": "another"},
            "session of client 'raw' was ended: a message",
        ),
        ({"seq": 5}, "connection of client 'raw' was ended: message 5"),
    ],
    ids=["session", "connection"],
)
def test_the_log_says_which_rule_of_river_was_broken(
    changed: dict[str, object], text: str, log: Log
) -> None:
    forget()  # the line of another test, a moment ago
    with (
        rpc.serve([], codec="json") as server,
        RawRiver.dial(server.port, "json", websocket=True) as peer,
    ):
        peer.attach("session")
        peer.send(changed)
        assert peer.recv_end() == peer.clean
    (line,) = log.check()
    assert text in line


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_of_thousands_gets_a_line_a_second(
    attack: Callable[[int], None], log: Log
) -> None:
    attack(3000)
    left_out = [line for line in log.check() if "more like it were left out" in line]
    assert left_out or len(log.check()) <= 4


def test_the_id_of_a_session_is_in_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "wsmux")
    told: list[str] = []
    service = rpc.Service("one")
    with (
        rpc.serve([service], on_session_status=lambda what, name: told.append(name)) as server,
        rpc.connect(server.url) as client,
        pytest.raises(rpc.RiverError),
    ):
        client.rpc("one", "missing", None, timeout=WAIT)
    wait_for(lambda: told, "the notice of the session")
    assert "session_status" in caplog.text
    assert told[0] not in caplog.text
    assert told[0].removeprefix("session-") not in caplog.text


def test_a_close_of_the_peer_cannot_write_lines(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "wsmux")
    reason = f"bye\r\n{FORGED}\x1b[2J\u2028".encode()
    with wsmux.serve(wsmux.Connection.wait_closed) as server, raw_client(server.port) as peer:
        peer.send_frame(8, b"\x10\x00" + reason)
        assert peer.recv_close()[0] == 4096
        assert peer.recv_to_end() == b""
    assert any(FORGED in record.getMessage() for record in caplog.records)
    assert all(record.getMessage().isprintable() for record in caplog.records)
