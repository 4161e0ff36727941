"""Say heads that no client should to ``wsmux.serve``: refused, closed, and in one line logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

import wsmux
from wsmux.runtime import logs

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import ACK, RawPeer, message, read_head, request, uint32, wait_for
from ..helpers.request_heads import (
    NOT_ASCII,
    REFUSED,
    TAKEN,
    Head,
    answer,
    descriptors,
    dial,
    serving,
    uncaught,
)
from ..helpers.timeouts import WAIT
from ..helpers.waiting import threads_of

ALL = REFUSED | NOT_ASCII

UNASCII = NOT_ASCII["host"].data


@pytest.fixture(scope="module")
def server() -> Iterator[wsmux.Server]:
    with serving() as running:
        yield running


@pytest.mark.parametrize("head", ALL.values(), ids=ALL.keys())
def test_a_bad_head_is_refused_and_the_connection_closed(
    server: wsmux.Server, quiet: Callable[[], None], head: Head
) -> None:
    status, headers, text = answer(server, head.data)
    assert (status, headers["connection"]) == (head.status, "close")
    assert head.words in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN.keys())
def test_an_unusual_head_gets_101(server: wsmux.Server, data: bytes) -> None:
    with dial(server) as sock:
        sock.sendall(data)
        assert read_head(sock)[0] == "HTTP/1.1 101 Switching Protocols"


# Bytes behind the head


def opened(peer: RawPeer) -> None:
    first, _ = read_head(peer.sock)
    assert first.startswith("HTTP/1.1 101 "), first
    assert peer.recv_message()[:-4] == message(0, ACK)


def test_frames_that_come_with_the_request_are_the_first_that_are_handled(
    server: wsmux.Server,
) -> None:
    with RawPeer(dial(server), masks=True) as peer:
        peer.send(request("a") + peer.packed(0, ACK, uint32(1000)))
        opened(peer)


def test_frames_that_come_with_the_request_over_tls_are_handled(
    certificates: Certificates,
) -> None:
    with serving(ssl_context=certificates.server) as server:
        secure = certificates.client.wrap_socket(dial(server), server_hostname="localhost")
        with RawPeer(secure, masks=True) as peer:
            peer.send(request("a") + peer.packed(0, ACK, uint32(1000)))
            opened(peer)


def test_a_refusal_arrives_though_more_came_than_was_read(server: wsmux.Server) -> None:
    data = request("a", {"Upgrade": None}) + bytes(64 * 1024)
    assert answer(server, data)[0] == 426


# What nobody foresaw


def test_heads_that_are_not_ascii_cost_one_line_and_no_descriptor(
    quiet: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logs, "PAUSE", WAIT)
    caplog.set_level(logging.INFO)
    seen = uncaught(monkeypatch)
    with serving(max_connections=4) as server:
        before = descriptors()
        for _ in range(50):
            assert answer(server, UNASCII)[0] == 400
            wait_for(lambda: not threads_of(server))
        assert descriptors() == before
    lines = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert len(lines) == 1
    assert "no Host header of a host" in lines[0]
    assert not seen
