"""A string given for a collection of strings is refused where it is given, with the right form."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.access import Access
from wsmux.arguments import strings
from wsmux.bus.client import Client
from wsmux.bus.keys import Identity
from wsmux.bus.peer import Peer
from wsmux.bus.relay import Relay
from wsmux.bus.twin_sources import twins_from
from wsmux.flask import Mux
from wsmux.testing import LockOrder
from wsmux.tunnel.allow import AllowList
from wsmux.tunnel.programs import Programs
from wsmux.tunnel.remote import RemoteProcess
from wsmux.tunnel.serving import TunnelServer

from ..bus.relays import Table, identity

URL = "ws://127.0.0.1:1"


def someone() -> Identity:
    return identity(1)


def over_a_pair(argv: Any) -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs:
        RemoteProcess(ours, argv, timeout=1.0)


# Where a user passes a collection, and what it is called.
PLACES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "serve": ("protocols", lambda given: wsmux.serve(print, protocols=given)),
    "Mux": ("protocols", lambda given: Mux(protocols=given)),
    "AllowList": ("patterns", AllowList),
    "TunnelServer-connect": ("connect", lambda given: TunnelServer(connect=given)),
    "TunnelServer-listen": ("listen", lambda given: TunnelServer(listen=given)),
    "TunnelServer-programs": ("programs", lambda given: TunnelServer(programs=given)),
    "Programs": ("programs", Programs),
    "RemoteProcess": ("argv", over_a_pair),
    "Relay": ("domains", lambda given: Relay(given, Table())),
    "twins_from": ("twins", twins_from),
    "LockOrder": ("may_block", lambda given: LockOrder(may_block=given)),
    "connect": ("headers", lambda given: wsmux.connect(URL, headers=given)),
    "Config": ("trusted_proxies", lambda given: wsmux.Config(trusted_proxies=given)),
    "rpc.connect": ("headers", lambda given: rpc.connect(URL, headers=given)),
}

# Where a string may be given alone, but bytes may not.
ALONE: dict[str, tuple[str, Callable[[Any], object]]] = {
    "connect": ("protocol", lambda given: wsmux.connect(URL, protocol=given)),
    "Access": ("token", Access),
    "Client-relays": ("relays", lambda given: Client(someone(), given, Table(), twin=1)),
    "Client-twins": ("twins", lambda given: Client(someone(), URL, given, twin=1)),
    "Peer": ("relays", lambda given: Peer(someone(), given, Table(), twin=1)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", ["wsmux", b"wsmux", bytearray(b"wsmux"), 5])
def test_what_is_no_collection_of_strings_is_refused(place: str, given: Any) -> None:
    name, take = PLACES[place]
    with pytest.raises(
        TypeError, match=rf"^{name} must be a collection of strings, such as {name}="
    ):
        take(given)


@pytest.mark.parametrize("place", PLACES)
def test_an_item_that_is_no_string_is_refused(place: str) -> None:
    name, take = PLACES[place]
    with pytest.raises(TypeError, match=rf"^{name} must hold strings only, such as .* item 0 is"):
        take([b"wsmux"])


@pytest.mark.parametrize("place", ALONE)
@pytest.mark.parametrize("given", [b"wsmux", 5, [b"wsmux"]])
def test_one_string_may_stand_alone_but_nothing_else_may(place: str, given: Any) -> None:
    name, take = ALONE[place]
    with pytest.raises(TypeError, match=rf"^{name} must "):
        take(given)


def test_the_name_of_one_module_is_no_collection_of_modules() -> None:
    with pytest.raises(TypeError, match=r"^modules must be a collection of strings"):
        LockOrder("wsmux.stream")


def test_the_form_that_would_do_is_shown() -> None:
    with pytest.raises(TypeError) as error:
        strings("origins", "https://app.example", "https://example.org")
    assert str(error.value) == (
        "origins must be a collection of strings, such as origins=['https://example.org'], "
        "not a single str: put it in a list"
    )


def test_no_value_is_shown_since_it_may_be_a_secret() -> None:
    for given in (b"secret", [b"secret"]):
        with pytest.raises(TypeError) as error:
            Access(given)  # type: ignore[arg-type]
        assert "secret" not in str(error.value)


def test_an_iterator_is_read_once_and_kept() -> None:
    def names() -> Iterator[str]:
        yield "a"
        yield "b"

    assert strings("names", names(), "a") == ("a", "b")


def test_an_empty_collection_is_one() -> None:
    assert strings("names", frozenset(), "a") == ()


def test_a_wrong_argument_leaves_no_port_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for arguments in ({"origins": "*"}, {"origins": ["x"]}, {"protocols": "wsmux"}):
        with pytest.raises((TypeError, ValueError)):
            wsmux.serve(print, port=port, **arguments)  # type: ignore[arg-type]
    wsmux.serve(print, port=port).shutdown()
