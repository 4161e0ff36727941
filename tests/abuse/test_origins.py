"""Come from pages whose origin looks like one that may connect, at every kind of server (H17).

Only the same origin, or one that is listed, gets a 101; all else is 403, and no thread is kept.
That of ``wsmux.serve`` is also tested, with more look-alikes, in ``faults/test_handshake_server``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux import rpc
from wsmux.bus.relay.setup import serve_relay
from wsmux.endpoints.connection_options import ConnectionOptions
from wsmux.flask import Mux
from wsmux.handshake.origin import allowed_origins, origin_allowed

from ..helpers.bus.relays import Table
from ..helpers.carriers import ONE_SERVER, WsgiServers
from ..helpers.every_server import KINDS, Place, under_wsgi
from ..helpers.request_heads import LIKE_LISTED, LISTED
from ..helpers.tables import each_case

# What resembles the origin of the server itself, by its host and port.
LIKE_OWN = {
    "other-port": "http://127.0.0.1:1",
    "no-port": "http://127.0.0.1",
    "https": "https://{host}",
    "name-for-number": "http://localhost:{port}",
    "suffix": "http://127.0.0.1.evil.example:{port}",
    "trailing-dot": "http://127.0.0.1.:{port}",
    "userinfo": "http://{host}@evil.example",
    "userinfo-before-ours": "http://evil@{host}",
    "null": "null",
    "ipv6": "http://[::1]:{port}",
    "ipv4-in-ipv6": "http://[::ffff:127.0.0.1]:{port}",
    "hexadecimal": "http://0x7f.1:{port}",
    "decimal": "http://2130706433:{port}",
    "octal": "http://0177.0.0.1:{port}",
    "leading-zero-port": "http://127.0.0.1:0{port}",
    "foreign": "https://evil.example",
    "websocket-scheme": "ws://{host}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_look_alikes_of_a_listed_origin_are_refused(kind: str) -> None:
    with KINDS[kind]([LISTED, "http://[2001:db8::7]:8080"]) as place:
        got = {name: place.status(origin) for name, origin in LIKE_LISTED.items()}
        assert got == dict.fromkeys(LIKE_LISTED, 403)
        assert place.status(f"http://{place.host}") == 403, "only those that are listed"
        assert place.status(LISTED) == 101
        assert place.status("HTTPS://App.Example:443") == 101
        assert place.status("http://[2001:db8::7]:8080") == 101
        assert place.status(None) == 101


@pytest.mark.parametrize("kind", KINDS)
def test_look_alikes_of_the_own_origin_are_refused(kind: str) -> None:
    with KINDS[kind](None) as place:
        check_own(place)


def check_own(place: Place) -> None:
    filled = {
        name: origin.format(host=place.host, port=place.port) for name, origin in LIKE_OWN.items()
    }
    got = {name: place.status(origin) for name, origin in filled.items()}
    assert got == dict.fromkeys(LIKE_OWN, 403)
    assert place.status(f"http://{place.host}") == 101
    assert place.status(None) == 101


@pytest.mark.long
@pytest.mark.parametrize("target", ["/", "/river"])
@pytest.mark.parametrize("server", ONE_SERVER)
def test_look_alikes_are_refused_under_every_wsgi_server(
    server: str, target: str, wsgi_servers: WsgiServers
) -> None:
    """More of them than a server has threads: if it kept them it would answer no more."""
    check_own(under_wsgi(wsgi_servers.url(server), target))


@pytest.mark.parametrize("origin", ["null", "", "https://app.example/", "app.example", "x://y"])
def test_what_is_no_origin_cannot_be_listed(origin: str) -> None:
    assert not origin_allowed(origin, "host", secure=False, allowed=[origin, LISTED])


# What a user lists


def made_server(origins: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wsmux.Server(
            wsmux.Connection.wait_closed,
            listener,
            ConnectionOptions(),
            protocols=["wsmux"],
            transport="websocket",
            origins=origins,
            ssl_context=None,
            max_connections=1,
        )


TAKERS: dict[str, Callable[[Any], object]] = {
    "serve": lambda origins: wsmux.serve(wsmux.Connection.wait_closed, origins=origins),
    "Server": made_server,
    "Mux": lambda origins: Mux(origins=origins),
    "rpc.serve": lambda origins: rpc.serve([], origins=origins),
    "rpc.flask": lambda origins: rpc.flask(Flask("app"), "/river", [], origins=origins),
    "serve_relay": lambda origins: serve_relay(["relay.test"], Table(), origins=origins),
}


@each_case
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("origins", ["https://*.example.org", "*", b"https://example.org"])
def test_a_single_string_of_origins_is_refused_at_once(taker: str, origins: Any) -> None:
    with pytest.raises(TypeError, match=r"^origins must be a collection of strings, such as "):
        TAKERS[taker](origins)


@pytest.mark.parametrize("taker", TAKERS)
def test_an_origin_that_no_page_has_is_refused_at_once(taker: str) -> None:
    with pytest.raises(ValueError, match=r"list each host by its name; an origin is a scheme"):
        TAKERS[taker](["https://*.example.org"])


@pytest.mark.parametrize("kind", KINDS)
def test_origins_of_an_iterator_hold_for_every_client(kind: str) -> None:
    def listed() -> Iterator[str]:
        yield "https://other.example"
        yield LISTED

    with KINDS[kind](listed()) as place:  # type: ignore[arg-type]
        assert [place.status(LISTED) for _ in range(3)] == [101, 101, 101]
        assert [place.status("https://evil.example") for _ in range(3)] == [403, 403, 403]


@each_case
@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "app.example",
        "//app.example",
        "https://",
        "https://app.example/",
        "https://app.example/path",
        "https://app.example?x",
        "https://app.example:",
        "https://app.example:080",
        "https://app.example:99999",
        "https://user@app.example",
        "https://*",
        "https://*.app.example",
        "https://app.*",
        "https://app..example",
        "https://app example",
        "https://b\xfccher.example",
        "https://app%2eexample",
        "https://127.1",
        "https://2130706433",
        "https://0x7f000001",
        "https://127.0.0.1.",
        "https://[::0001]",
        "https://[::ffff:127.0.0.1]",
        "https://[fe80::1%25eth0]",
        "https://[app.example]",
        "wss://app.example",
        "chrome-extension://app",
        "**",
    ],
)
def test_what_no_page_can_have_cannot_be_listed(origin: str) -> None:
    with pytest.raises(ValueError, match=r"'\*' alone accepts every page$"):
        allowed_origins([LISTED, origin])


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "http://localhost",
        "http://localhost:8080",
        "HTTPS://App.Example:443",
        "https://app_1.example.",
        "https://xn--bcher-kva.example",
        "http://127.0.0.1:5000",
        "http://[2001:db8::7]:8080",
        "http://[::ffff:7f00:1]",
    ],
)
def test_what_a_page_can_have_is_taken(origin: str) -> None:
    listed = allowed_origins([origin])
    assert listed == {origin}
    sent = LISTED if origin == "*" else origin
    assert origin_allowed(sent, "host", secure=False, allowed=listed)


def test_a_list_of_no_origins_keeps_every_page_out() -> None:
    assert not origin_allowed(LISTED, "app.example", secure=True, allowed=allowed_origins([]))
