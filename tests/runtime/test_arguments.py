"""What is no argument is refused where it is given, with what would do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wsmux
from wsmux import rpc, spark
from wsmux.bus.client import Client
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.relay.relay import Relay
from wsmux.bus.twins.sources import twins_from
from wsmux.bus.wire.keys import Identity
from wsmux.cluster import Cluster
from wsmux.flask import Mux, debug_blueprint
from wsmux.handshake.access import Access
from wsmux.rpc.schema.document import serialize
from wsmux.runtime.arguments import check_seconds, strings
from wsmux.testing import LockOrder
from wsmux.tunnel.allow import AllowList
from wsmux.tunnel.programs import Programs
from wsmux.tunnel.remote import RemoteProcess
from wsmux.tunnel.serving import TunnelServer

from ..helpers.bus.relays import Table, identity
from ..helpers.ports import free_port
from ..helpers.tables import each_case

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


@each_case
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", ["wsmux", b"wsmux", bytearray(b"wsmux"), 5])
def test_what_is_no_collection_of_strings_is_refused(place: str, given: Any) -> None:
    name, take = PLACES[place]
    with pytest.raises(
        TypeError, match=rf"^{name} must be a collection of strings, such as {name}="
    ):
        take(given)


@each_case
@pytest.mark.parametrize("place", PLACES)
def test_an_item_that_is_no_string_is_refused(place: str) -> None:
    name, take = PLACES[place]
    with pytest.raises(TypeError, match=rf"^{name} must hold strings only, such as .* item 0 is"):
        take([b"wsmux"])


@each_case
@pytest.mark.parametrize("place", ALONE)
@pytest.mark.parametrize("given", [b"wsmux", 5, [b"wsmux"]])
def test_one_string_may_stand_alone_but_nothing_else_may(place: str, given: Any) -> None:
    name, take = ALONE[place]
    with pytest.raises(TypeError, match=rf"^{name} must "):
        take(given)


def test_the_name_of_one_module_is_no_collection_of_modules() -> None:
    with pytest.raises(TypeError, match=r"^modules must be a collection of strings"):
        LockOrder("wsmux.mux.stream")


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
    port = free_port()
    for arguments in ({"origins": "*"}, {"origins": ["x"]}, {"protocols": "wsmux"}):
        with pytest.raises((TypeError, ValueError)):
            wsmux.serve(print, port=port, **arguments)  # type: ignore[arg-type]
    wsmux.serve(print, port=port).shutdown()


# Seconds that cannot be 0 or less


def alone(**given: Any) -> None:
    with Cluster() as cluster:
        cluster.counts(**given)


def told_by_a_cluster(**given: Any) -> None:
    with Cluster() as cluster:
        cluster.status(**given)


def uploaded(**given: Any) -> None:
    spark.upload_bytes(spark.connection(URL), "name", [b""], **given)


def called(**given: Any) -> None:
    spark.rpc(spark.connection(URL), "s.p").rows(**given)


# What takes them, and the names of its arguments.
TIMED: list[tuple[Callable[..., object], list[str]]] = [
    (check_seconds, ["timeout"]),
    (alone, ["timeout"]),
    (told_by_a_cluster, ["timeout", "stalled_after"]),
    (uploaded, ["timeout"]),
    (called, ["timeout"]),
    (lambda **given: spark.connection(URL, **given), ["connect_timeout", "call_timeout"]),
    (lambda **given: spark.ingest(URL, "dataset", **given), ["timeout"]),
    (lambda **given: spark.serve_data(**given), ["stream_timeout", "sweep"]),
    (lambda **given: spark.SqliteTopics(**given), ["ttl", "lock_timeout"]),
    (lambda **given: spark.RedisTopics("redis://127.0.0.1:1", **given), ["ttl", "timeout"]),
    (lambda **given: spark.DeltaDatasets(**given), ["lock_timeout"]),
    (lambda **given: debug_blueprint([], **given), ["stalled_after"]),
    (lambda **given: wsmux.LiveSocket([], **given), ["stalled_after"]),
]


@each_case
@pytest.mark.parametrize(
    ("take", "name"), [(take, name) for take, names in TIMED for name in names]
)
@pytest.mark.parametrize("given", [0, -1, -0.5, float("nan")])
def test_seconds_that_are_none_are_refused(
    take: Callable[..., object], name: str, given: float
) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be above 0 seconds, not {given!r}$"):
        take(**{name: given})


@each_case
@pytest.mark.parametrize(
    ("take", "name"), [(take, name) for take, names in TIMED for name in names]
)
@pytest.mark.parametrize("given", ["5", True, [5]])
def test_what_is_no_number_of_seconds_is_refused(
    take: Callable[..., object], name: str, given: Any
) -> None:
    told = f"^{name} must be a number of seconds, not {type(given).__name__}$"
    with pytest.raises(TypeError, match=told):
        take(**{name: given})


# Other arguments of a wrong type, or of none


def over_two(protocol: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wsmux.from_socket(ours, role="client", protocol=protocol)


def with_a_socket(**given: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wsmux.from_socket(ours, **{"role": "client", **given})


def bridged(other: Any) -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs:
        wsmux.bridge(ours, other)


TOKEN = "secret" * 4

WRONG: dict[str, tuple[str, Callable[[], object]]] = {
    "a token of bytes": (
        "token must be a single string, not bytes",
        lambda: debug_blueprint([], token=TOKEN.encode()),  # type: ignore[arg-type]
    ),
    "a list of tokens": (
        "token must be a single string, not list",
        lambda: debug_blueprint([], token=[TOKEN]),  # type: ignore[arg-type]
    ),
    "a token for a function": (
        "authorize must be a function that returns whether a request may see the page, not str",
        lambda: debug_blueprint([], authorize=TOKEN),  # type: ignore[arg-type]
    ),
    "a wire in a list, of pair": (
        "protocol must be one of wsmux, js-ws, yamux, bymux, a string, not list",
        lambda: wsmux.pair(protocol=["wsmux"]),  # type: ignore[arg-type]
    ),
    "a wire in a list, of from_socket": (
        "protocol must be one of wsmux, js-ws, yamux, bymux, a string, not list",
        lambda: over_two(["wsmux"]),
    ),
    "no wire, of pair": (
        "protocol must be one of wsmux, js-ws, yamux, bymux, a string, not NoneType",
        lambda: wsmux.pair(protocol=None),  # type: ignore[arg-type]
    ),
    "a number for a subprotocol": (
        "subprotocol must be a string, such as 'yamux', or None, not int",
        lambda: wsmux.connect(URL, subprotocol=5),  # type: ignore[arg-type]
    ),
    "subprotocols in a list": (
        "subprotocol must be a string, such as 'yamux', or None, not list",
        lambda: wsmux.connect(URL, subprotocol=["yamux"]),  # type: ignore[arg-type]
    ),
    "a URL for a socket": (
        "from_socket() takes a connected socket, not str",
        lambda: wsmux.from_socket(URL, role="client"),  # type: ignore[arg-type]
    ),
    "a dictionary for the limits": (
        "config must be a wsmux.Config, such as Config(max_streams=8), not dict",
        lambda: wsmux.pair(config={"max_streams": 8}),  # type: ignore[arg-type]
    ),
    "a name for a handler of streams": (
        "stream_handler must be a function, not str",
        lambda: wsmux.serve(stream_handler="echo"),  # type: ignore[arg-type]
    ),
    "a name for a function of codes": (
        "code_to_reason must be a function, not str",
        lambda: Mux(code_to_reason="reason"),  # type: ignore[arg-type]
    ),
    "an address for a handler": (
        "serve() takes a function of a connection as its handler, not str",
        lambda: wsmux.serve("127.0.0.1"),  # type: ignore[arg-type]
    ),
    "a stream for a connection": (
        "bridge() joins two connections, as connect() returns them, not str",
        lambda: bridged("a stream"),
    ),
    "a name for services": (
        "services must be a collection of wsmux.rpc.Service, such as [Service('files')], "
        "not a single str",
        lambda: rpc.serve("abc"),  # type: ignore[arg-type]
    ),
    "a service without a list": (
        "services must be a collection of wsmux.rpc.Service, such as [Service('files')], "
        "not a single Service: put it in a list",
        lambda: rpc.serve(rpc.Service("files")),  # type: ignore[arg-type]
    ),
    "a service without a list, for a schema": (
        "services must be a collection of wsmux.rpc.Service, such as [Service('files')], "
        "not a single Service: put it in a list",
        lambda: serialize(rpc.Service("files")),  # type: ignore[arg-type]
    ),
    "names of services": (
        "services must be a collection of wsmux.rpc.Service, such as [Service('files')], "
        "and one of them is of type str",
        lambda: rpc.handler(["files"]),  # type: ignore[list-item]
    ),
    "a number to connect to": (
        "expected a URL, a Connection, a Stream, a socket or a function that makes one, not int",
        lambda: rpc.connect(5),  # type: ignore[arg-type]
    ),
}


@each_case
@pytest.mark.parametrize(("told", "take"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_type_is_told_with_what_is_wanted(told: str, take: Callable[[], object]) -> None:
    with pytest.raises(TypeError) as refused:
        take()
    assert str(refused.value) == told


@pytest.mark.parametrize("take", [lambda **given: wsmux.serve(print, **given), Mux])
def test_a_server_of_no_wire_is_refused(take: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="^protocols is empty, .* name one"):
        take(protocols=[])


def test_a_role_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="^role must be 'client' or 'server', not 'peer'$"):
        with_a_socket(role="peer")
