"""Handlers that tests replay recordings against, by their names too, and recordings of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import wsmux

from .scripted import WAIT

NO_HANDLER = "a text"

RECORDING = wsmux.Config(recording=wsmux.Recording(payload=10_000))

never = threading.Event()


def upper(stream: wsmux.Stream) -> None:
    stream.write(bytes(stream.readall()).upper())


def lower(stream: wsmux.Stream) -> None:
    stream.write(bytes(stream.readall()).lower())


def longer(stream: wsmux.Stream) -> None:
    stream.write(bytes(stream.readall()).upper() + b"!")


def deaf(stream: wsmux.Stream) -> None:
    stream.read(1)
    stream.reset(70)


def silent(stream: wsmux.Stream) -> None:
    stream.readall()
    never.wait()


def failing(connection: wsmux.Connection) -> None:
    raise RuntimeError("this handler fails")


def serving(connection: wsmux.Connection) -> None:
    for stream in connection:
        with stream:
            upper(stream)


def calling(connection: wsmux.Connection) -> None:
    """Act as a client: ask once, and reset once."""
    with connection.open_stream() as stream:
        stream.write(b"Hello")
        stream.close_write()
        stream.readall()
    connection.open_stream().reset(70)


def pinging(connection: wsmux.Connection) -> None:
    calling(connection)
    connection.ping(10.0)


def conversation(protocol: str = "wsmux", transport: str = "websocket", size: int = 5) -> str:
    """Record a server while a client asks thrice; return what it kept."""
    plan = wsmux.Recording(payload=4_000_000)
    kept: list[wsmux.Connection] = []

    def serve(connection: wsmux.Connection) -> None:
        kept.append(connection)
        serving(connection)

    with wsmux.serve(
        serve,
        protocols=[protocol],
        transport=transport,  # type: ignore[arg-type]
        config=wsmux.Config(recording=plan),
    ) as server:
        with wsmux.connect(server.url, protocol=protocol) as client:
            for _ in range(3):
                with client.open_stream() as stream:
                    stream.write(b"Hello" * (size // 5))
                    stream.close_write()
                    assert len(stream.readall()) == size
            client.ping(WAIT)
        kept[0].close(WAIT)
    return kept[0].dump_recording()


def as_client(protocol: str, handler: Callable[[wsmux.Connection], None]) -> str:
    """Record a client of a server that answers in capitals; return what it kept."""
    with (
        wsmux.serve(stream_handler=upper, protocols=[protocol]) as server,
        wsmux.connect(server.url, protocol=protocol, config=RECORDING) as client,
    ):
        handler(client)
        client.close(WAIT)
        return client.dump_recording()
