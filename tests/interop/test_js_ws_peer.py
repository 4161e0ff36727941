"""Prove the harness: two Node peers talk to each other as the js-ws tests expect them to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ..helpers.interop.link import marks
from ..helpers.interop.peer_process import PeerError, PeerProcess, generate, sha256

if TYPE_CHECKING:
    from ..helpers.certificates import Certificates

pytestmark = marks


class Peers(NamedTuple):
    client: PeerProcess
    server: PeerProcess


@pytest.fixture
def peers(start_peer: Callable[[], PeerProcess], certificates: Certificates) -> Peers:
    server, client = start_peer(), start_peer()
    listening = server.call(
        "listen",
        host="127.0.0.1",
        key=certificates.key.read_text(),
        cert=certificates.chain.read_text(),
    )
    client.call(
        "connect", host="127.0.0.1", port=listening["port"], ca=certificates.authority.read_text()
    )
    server.call("connected")
    return Peers(client, server)


def test_peer_runs_the_pinned_version(start_peer: Callable[[], PeerProcess]) -> None:
    assert start_peer().version == "1.1.7"


def test_both_languages_generate_the_same_bytes(peers: Peers) -> None:
    stream = peers.client.call("open")["handle"]
    written = peers.client.call("write", stream=stream, seed="same", size=5000)
    assert written["sha256"] == sha256(generate("same", 5000))


def test_echo_mode_returns_what_was_written(peers: Peers) -> None:
    peers.server.call("incoming", mode="echo")
    answers = peers.client.call("exchangeMany", count=3, seed="echo", size=100_000, chunk=100_000)
    assert [answer["sha256"] for answer in answers] == [
        sha256(generate(f"echo-{index}", 100_000)) for index in range(3)
    ]


def test_abort_reaches_the_reader_with_its_code(peers: Peers) -> None:
    opened = peers.client.call("open")["handle"]
    accepted = peers.server.call("accept")["handle"]
    reading = peers.server.submit("readAll", stream=accepted)
    peers.client.call("abort", stream=opened, code=4001)
    with pytest.raises(PeerError) as caught:
        peers.server.answer(reading)
    assert caught.value.code == 4001


def test_cancel_reaches_the_writer_with_its_code(peers: Peers) -> None:
    opened = peers.client.call("open")["handle"]
    accepted = peers.server.call("accept")["handle"]
    peers.server.call("cancel", stream=accepted, code=77)
    with pytest.raises(PeerError) as caught:
        peers.client.call("writerClosed", stream=opened)
    assert caught.value.code == 77


def test_stop_is_seen_with_code_and_reason(peers: Peers) -> None:
    peers.client.call("stop", code=4321, reason="over")
    closed = peers.server.call("waitClosed")
    assert (closed["by"], closed["code"], closed["reason"]) == ("peer", 4321, "over")


def test_uncaught_exception_is_told_and_survived(start_peer: Callable[[], PeerProcess]) -> None:
    peer = start_peer()
    peer.call("throwLater", message="nobody catches this")
    assert peer.call("waitUncaught")["message"] == "nobody catches this"
    assert [error["message"] for error in peer.uncaught] == ["nobody catches this"]


def test_command_without_an_answer_times_out(start_peer: Callable[[], PeerProcess]) -> None:
    with pytest.raises(PeerError, match="never took longer than 50 ms"):
        start_peer().call("never", timeout=0.05)


def test_death_of_the_process_fails_the_commands_under_way(
    start_peer: Callable[[], PeerProcess],
) -> None:
    peer = start_peer()
    waiting = peer.submit("never")
    peer.call("exit")
    with pytest.raises(AssertionError, match="never: the node process ended"):
        peer.answer(waiting)
