"""Handlers for tests of ``wsmux replay`` to name."""

from __future__ import annotations

import threading

import wsmux

NO_HANDLER = "a text"

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
    """Be a client: ask once, and reset once."""
    with connection.open_stream() as stream:
        stream.write(b"Hello")
        stream.close_write()
        stream.readall()
    connection.open_stream().reset(70)


def pinging(connection: wsmux.Connection) -> None:
    calling(connection)
    connection.ping(10.0)
