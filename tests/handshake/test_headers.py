"""What cannot stand in the head of a request is refused before anything is dialled, and not shown.

Nobody listens at the address: whoever dialled it would fail in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import wsmux
from wsmux import HandshakeError, rpc
from wsmux.bus.federation.http_post import Poster
from wsmux.bus.session.link import dial
from wsmux.bus.session.relay_connection import host_of
from wsmux.doctor import Plan
from wsmux.handshake.headers import header_lines
from wsmux.runtime.deadline import Deadline
from wsmux.spark import connection
from wsmux.tunnel.errors import TunnelError
from wsmux.tunnel.remote import RemoteProcess
from wsmux.tunnel.request_head import Request, encode_request

from ..helpers.tables import each_case

URL = "ws://127.0.0.1:1"

# Where a user passes headers.
PLACES: dict[str, Callable[[Any], object]] = {
    "connect": lambda given: wsmux.connect(URL, headers=given),
    "rpc.connect": lambda given: rpc.connect(URL, headers=given),
    "Plan": lambda given: Plan(url=URL, headers=given),
}

WRONG: dict[str, Any] = {
    "a value with a line break": {"A": "secret\r\nOrigin: x"},
    "a value with a line feed": {"A": "secret\nOrigin: x"},
    "a value with a return": {"A": "secret\rOrigin: x"},
    "a value with a zero": {"A": "secret\0"},
    "a value with a delete": {"A": "secret\x7f"},
    "a value outside Latin-1": {"A": "secret →"},
    "a value with half a character": {"A": "secret \ud800"},
    "a line with a line break": ["A: secret\r\nB: c"],
    "a line with a line feed": ["X-A: 1", "A: secret\nB: c"],
    "a line without a colon": ["secret"],
    "a line without a name": [": secret"],
    "a line that begins with a space": [" A: secret"],
    "a name with a line break": {"secret\r\nB": "c"},
    "a name with a space": {"secret B": "c"},
    "a name with a space behind it": ["secret : c"],
    "a name with a colon": {"A: secret": "c"},
    "a name beyond ASCII": {"secreté": "c"},
    "no name": {"": "secret"},
}

WRONG_TYPES: dict[str, Any] = {
    "bytes": {b"secret": b"secret"},
    "a name of bytes": {b"secret": "secret"},
    "a value of bytes": {"A": b"secret"},
    "no value": {"A": None},
    "a number": {"A": 5},
    "several values": {"A": ["secret"]},
    "pairs": [("A", "secret")],
}


@each_case
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG.keys())
def test_a_header_that_none_can_be_is_refused_without_being_shown(place: str, given: Any) -> None:
    with pytest.raises(ValueError, match="header") as refused:
        PLACES[place](given)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@each_case
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_a_header_that_is_no_string_is_refused(place: str, given: Any) -> None:
    with pytest.raises(TypeError, match="header.*string") as refused:
        PLACES[place](given)
    assert "secret" not in str(refused.value)


def test_the_header_with_the_wrong_value_is_named() -> None:
    with pytest.raises(ValueError, match=r"^the value of the header X-Token has a line break or"):
        header_lines({"X-Good": "x", "X-Token": "secret\n"})
    with pytest.raises(ValueError, match=r"^the name of header 1 is not an HTTP token"):
        header_lines(["X-Good: x", "X Token: y"])


def test_headers_that_can_be_sent_are_kept_as_they_are() -> None:
    given = {"X-A": "b\tc é", "!#$%&'*+.^_`|~09azAZ-": "", "X-B": " spaced "}
    lines = header_lines(given)
    assert lines == [f"{name}: {value}" for name, value in given.items()]
    assert header_lines(lines) == lines


@each_case
@pytest.mark.parametrize("name", ["cookie", "host", "origin"])
@pytest.mark.parametrize("place", ["connect", "rpc.connect"])
@pytest.mark.parametrize(
    ("given", "error"),
    [("secret\r\nA: b", ValueError), ("secret →", ValueError), (b"secret", TypeError)],
    ids=["line break", "outside Latin-1", "bytes"],
)
def test_an_option_that_becomes_a_header_is_checked_as_one(
    place: str, name: str, given: Any, error: type[Exception]
) -> None:
    connect: Callable[..., object] = wsmux.connect if place == "connect" else rpc.connect
    with pytest.raises(error, match=f"^{name}= ") as refused:
        connect(URL, **{name: given})
    assert "secret" not in str(refused.value)


@each_case
@pytest.mark.parametrize("path", ["/a\r\nX-Y: z", "/a b", "/\0", "/a\tb", "/?a\n", "/\ud800"])
@pytest.mark.parametrize(
    "take",
    [
        wsmux.connect,
        rpc.connect,
        connection,
        host_of,
        lambda url: Plan(url=url),
        lambda url: dial(url, lambda: "token", Deadline(1.0)),
        lambda url: Poster({"other.test": url.replace("ws", "http", 1)}),
    ],
    ids=["connect", "rpc", "spark", "RelayConnection", "Plan", "bus", "Poster"],
)
def test_a_url_with_what_ends_it_in_a_head_is_refused(
    take: Callable[[str], object], path: str
) -> None:
    with pytest.raises(ValueError, match="URL|address"):
        take(URL + path)


def test_a_subprotocol_with_a_line_break_is_refused() -> None:
    for take in (wsmux.connect, lambda url, **given: Plan(url=url, **given)):
        with pytest.raises(ValueError, match="^subprotocol must be a single token"):
            take(URL, subprotocol="a\r\nB: c")


# Headers that are made, or change, when a client of River connects


def attempt(headers: Any) -> str:
    """Return what an attempt to connect fails with."""
    failures: list[Exception] = []

    def is_fatal(error: Exception) -> bool:
        failures.append(error)
        return True

    with (
        rpc.connect(URL, headers=headers, is_fatal=is_fatal) as client,
        pytest.raises(rpc.RiverError),
    ):
        client.wait_connected(10.0)
    [failure] = failures
    assert isinstance(failure, HandshakeError)
    return str(failure)


def test_a_function_that_makes_no_headers_is_told_what_it_must_return() -> None:
    assert attempt(lambda: "A: secret") == (
        "the function given for headers returned what cannot be sent: headers must be a collection "
        "of strings, such as headers=['X-Name: value'], not a single str: put it in a list"
    )


def test_a_function_that_makes_a_header_with_a_line_break_is_told_so() -> None:
    told = attempt(lambda: {"A": "secret\r\n"})
    assert "the value of the header A has a line break" in told
    assert "secret" not in told


def test_a_mapping_that_has_come_to_hold_a_line_break_is_told_so() -> None:
    given = {"A": "b"}

    class Changing(dict[str, str]):
        """Valid the first time only."""

        def items(self) -> Any:
            held, given["A"] = list(given.items()), "secret\n"
            return held

    told = attempt(Changing())
    assert told.startswith("the headers cannot be sent any more: the value of the header A has")


# Heads of tunnels


@pytest.mark.parametrize("program", ["sort\r\nArg: x", "sort HTTP/1.1", "söürt", "", "a\0b"])
def test_a_program_that_is_no_word_cannot_be_asked_for(program: str) -> None:
    with pytest.raises(TunnelError, match="cannot be asked for"):
        encode_request(Request("EXEC", program))
    ours, theirs = wsmux.pair()
    with ours, theirs, pytest.raises(TunnelError, match="cannot be asked for"):
        RemoteProcess(ours, [program], timeout=5.0)
