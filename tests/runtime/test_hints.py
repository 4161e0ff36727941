"""Mistakes that are easily made end in errors that say what to do."""

from __future__ import annotations

import errno
import inspect
import re
import ssl
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.config import Config
from wsmux.flask import Mux
from wsmux.runtime.hints import check_url, how_to_install, not_connected, tls_failed, wrong_url

from ..helpers.tables import each_case

PACKAGE = Path(wsmux.__file__).parent

SCHEMES = ("ws", "wss", "tcp")


# Installing


def test_an_extra_is_installed_by_name_and_from_a_checkout() -> None:
    told = how_to_install("flask")
    assert told == "pip install 'wsmux-streams[flask]' (from a checkout: pip install '.[flask]')"


def test_no_other_module_says_how_to_install() -> None:
    saying = [path for path in PACKAGE.rglob("*.py") if "pip install" in path.read_text()]
    assert [path.relative_to(PACKAGE).as_posix() for path in saying] == ["runtime/hints.py"]


def test_every_extra_that_is_named_exists() -> None:
    named = set()
    for path in PACKAGE.rglob("*.py"):
        named |= set(re.findall(r"how_to_install\([\"']([a-z0-9-]+)[\"']\)", path.read_text()))
    setup = (PACKAGE.parent / "setup.cfg").read_text()
    assert {"bus", "flask", "rpc"} <= named
    assert not [extra for extra in named if not re.search(rf"^{extra} =$", setup, re.MULTILINE)]


# Addresses


@each_case
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("host:1", "expected a ws://, wss:// or tcp:// URL, got 'host:1', which has no scheme"),
        ("", "expected a ws://, wss:// or tcp:// URL, got '', which has no scheme"),
        ("http://h/x", "got 'http://h/x': write ws:// instead of http://"),
        ("https://h", "got 'https://h': write wss:// instead of https://"),
        ("HTTPS://h", "got 'HTTPS://h': write wss:// instead of HTTPS://"),
        ("ftp://h", "expected a ws://, wss:// or tcp:// URL, got 'ftp://h'"),
        ("ws://", "got 'ws://', which has no host"),
        ("ws://:80/x", "got 'ws://:80/x', which has no host"),
        ("ws://h:99999", "'ws://h:99999': Port out of range"),
        ("ws://h:port", "'ws://h:port': Port could not be cast"),
        ("ws://[", "'ws://[': Invalid IPv6 URL"),
        (None, "expected a ws://, wss:// or tcp:// URL, got None"),
        (b"ws://h", "got b'ws://h'"),
        ("FTP://h", "expected a ws://, wss:// or tcp:// URL, got 'FTP://h'"),
        ("WS://", "got 'WS://', which has no host"),
        ("ws://h/a\r\nX-Y: z", "'ws://h/a\\r\\nX-Y: z' has a character that URLs cannot have"),
        ("ws://h/a b", "percent-encode it, a space as %20"),
        ("ws://h/\0", "has a character that URLs cannot have"),
        ("ws://h/\x7f", "has a character that URLs cannot have"),
        ("ws://h/\ud800", "has a character that URLs cannot have"),
        ("tcp://h\n:1", "has a character that URLs cannot have"),
    ],
)
def test_a_wrong_url_is_told_with_what_was_expected(url: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        wsmux.connect(url)


@pytest.mark.parametrize("url", ["ws://h", "wss://h:1/x?y", "tcp://[::1]:80", "ws://u@h"])
def test_a_right_url_passes(url: str) -> None:
    assert check_url(url, *SCHEMES) == url


@pytest.mark.parametrize("url", ["WS://H/X", "Wss://H:1/X?Y", "TCP://H:1"])
def test_a_scheme_has_no_case(url: str) -> None:
    scheme, rest = url.split(":", 1)
    assert check_url(url, *SCHEMES) == f"{scheme.lower()}:{rest}"


def test_an_address_for_one_scheme_only_is_told_so() -> None:
    assert wrong_url("h", "unix") == "expected a unix:// URL, got 'h', which has no scheme"


# Connecting


@pytest.mark.parametrize(
    ("number", "check"),
    [
        (errno.ECONNREFUSED, "is the server running, and is that its port?"),
        (errno.EHOSTUNREACH, "is the host right, and the network up?"),
        (errno.ENETUNREACH, "is the host right, and the network up?"),
        (errno.ENOENT, "is the server running, and is that its path?"),
    ],
)
def test_a_failed_connection_is_told_with_what_to_check(number: int, check: str) -> None:
    made = not_connected("ws://h", OSError(number, "because"))
    assert (type(made), made.errno) == (type(OSError(number, "")), number)
    assert made.strerror == f"cannot connect to ws://h: because; {check}"


def test_any_other_failed_connection_is_told_with_the_url() -> None:
    made = not_connected("ws://h", ConnectionResetError(errno.ECONNRESET, "reset"))
    assert isinstance(made, ConnectionResetError)
    assert made.strerror == "cannot connect to ws://h: reset"


def test_a_failed_connection_without_a_number_is_told_too() -> None:
    made = not_connected("ws://h", OSError("no addresses"))
    assert (type(made), made.errno) == (OSError, None)
    assert str(made) == "cannot connect to ws://h: no addresses"


# Limits given as arguments


def ways() -> dict[str, Callable[..., object]]:
    def handler(connection: wsmux.Connection) -> None:
        pytest.fail("nothing is served")

    return {
        "connect": lambda **limits: wsmux.connect("ws://127.0.0.1:9", **limits),
        "serve": lambda **limits: wsmux.serve(handler, **limits),
        "from_socket": lambda **limits: wsmux.from_socket(None, role="client", **limits),  # type: ignore[arg-type]
        "pair": lambda **limits: wsmux.pair(**limits),
        "Mux": lambda **limits: Mux(Flask("app"), **limits),
    }


@each_case
@pytest.mark.parametrize("name", [field.name for field in fields(Config)])
@pytest.mark.parametrize("way", ways())
def test_a_limit_given_as_an_argument_is_led_to_config(way: str, name: str) -> None:
    told = f"{way}() has no argument {name}: pass config=Config({name}=...)"
    with pytest.raises(TypeError, match=f"^{re.escape(told)}$"):
        ways()[way](**{name: 3})


def test_several_limits_are_told_at_once() -> None:
    with pytest.raises(TypeError, match=r"=Config\(ping_interval=..., max_streams=...\)$"):
        wsmux.pair(ping_interval=3, max_streams=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("way", ways())
def test_an_argument_that_is_nowhere_is_refused_as_before(way: str) -> None:
    with pytest.raises(TypeError, match="xyzzy"):
        ways()[way](xyzzy=3)


@pytest.mark.parametrize("function", [wsmux.connect, wsmux.serve, wsmux.from_socket, Mux.__init__])
def test_what_hints_keeps_its_signature_and_words(function: Callable[..., object]) -> None:
    assert "config" in inspect.signature(function).parameters
    assert "limits" not in inspect.signature(function).parameters
    assert function.__module__ in ("wsmux.client", "wsmux.server", "wsmux.flask")


# Connecting over TLS


@pytest.mark.parametrize(
    ("url", "reason", "advice"),
    [
        ("wss://host", "WRONG_VERSION_NUMBER", "; does that port speak TLS? If not, write ws://"),
        ("tcp://host:1", "HTTP_REQUEST", "; does that port speak TLS? If not, leave out ssl_"),
        ("wss://host", "CERTIFICATE_VERIFY_FAILED", ""),
    ],
)
def test_what_answers_without_tls_is_told_from_a_failure_of_tls(
    url: str, reason: str, advice: str
) -> None:
    error = ssl.SSLError("why")
    error.reason = reason
    told = tls_failed(url, error)
    assert told.startswith(f"TLS with {url} failed: {error}{advice}")
    assert bool(advice) == ("speak TLS" in told)
