"""Call one procedure, and print each of its responses as a line of JSON.

An error result does not by itself end a subscription or stream: later results are printed, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.deadline import Deadline
from ..runtime.parking import OneShotEvent
from .addresses import add_connecting, client_tls, headers, url
from .rpc_schema import load, source
from .terminal import CommandError, emit, seconds, talk

if TYPE_CHECKING:
    from ..rpc import Client, RiverError, StreamCall
    from ..rpc.engine.call_streams import Result

EPILOG = (
    "Requests of an upload or stream are lines of JSON on stdin. Error results go to stderr, and "
    "make the exit status 1. In JSON, bytes are "
    """{"$t": base64}, bigints {"$b": decimal}; a date is printed as text, and given as """
    """{"$d": text}. """
    """Example: wsmux rpc call ws://127.0.0.1:8765/ counter.add '{"n": 1}'"""
)

KINDS = ("rpc", "upload", "subscription", "stream")

CHUNK = 64 * 1024

GOODBYE = 1.0  # seconds for attempts and callbacks that the end of the process would cut off


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux rpc call``."""
    parser.add_argument(
        "url", type=_url, metavar="URL", help="ws://, wss://, tcp:// or unix:// address"
    )
    parser.add_argument("procedure", type=_procedure, metavar="SERVICE.PROCEDURE")
    parser.add_argument(
        "init",
        nargs="?",
        metavar="INIT",
        help="JSON, or @FILE to read it from; null if absent or '-'",
    )
    parser.add_argument("--codec", choices=("msgpack", "json", "protobuf"), default="msgpack")
    parser.add_argument(
        "--kind", choices=KINDS, help="kind of the procedure; from --schema, or else rpc"
    )
    parser.add_argument(
        "--schema",
        type=source,
        metavar="FILE_OR_URL",
        help="schema in which to look up the procedure",
    )
    parser.add_argument("--timeout", type=seconds, help="seconds for the whole call")
    parser.add_argument(
        "--metadata", metavar="JSON", help="metadata of the handshake; or @FILE to read it from"
    )
    parser.add_argument("--client-id", metavar="ID", help="random by default")
    parser.add_argument("--server-id", metavar="ID", help="SERVER by default")
    add_connecting(parser)


def _url(text: str) -> str:
    return url(text, "unix")


def _procedure(text: str) -> str:
    service, _, procedure = text.rpartition(".")
    if not service or not procedure:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SERVICE.PROCEDURE")
    return text


class _Order(NamedTuple):
    """Describe the call."""

    service: str
    procedure: str
    init: Any
    timeout: float | None


def run(args: argparse.Namespace) -> int:
    """Make the call; return 1 if any result is an error."""
    from .. import rpc
    from ..rpc.wire.ids import SERVER_ID
    from .rpc_json import json_argument

    init = json_argument("INIT", args.init)
    metadata = json_argument("--metadata", args.metadata)
    service, procedure, kind = _look_up(args)
    way = _Way(args.url)
    try:
        client = rpc.connect(
            args.url,
            codec=args.codec,
            client_id=args.client_id,
            server_id=args.server_id or SERVER_ID,
            metadata=metadata,
            headers=headers(args, args.url),
            ssl_context=client_tls(args, args.url),
            errors="results",
            on_connection_status=way.note,
        )
    except ImportError as error:  # of msgpack
        raise CommandError(str(error)) from error
    good = False
    try:
        good = _MAKE[kind](client, _Order(service, procedure, init, args.timeout))
    except TimeoutError:
        client.close(GOODBYE)
        way.explain()
        raise
    finally:
        client.close(GOODBYE)
    if not good:
        way.explain()
    return 0 if good else 1


def _look_up(args: argparse.Namespace) -> tuple[str, str, str]:
    """Return service, procedure and kind; only a schema tells which dot separates the names."""
    service, _, procedure = args.procedure.rpartition(".")
    if args.schema is None:
        return service, procedure, args.kind or "rpc"
    from ..rpc.schema.document import read_schema

    try:
        schema = read_schema(load(args.schema, args))
    except ValueError as error:
        raise CommandError(f"{args.schema}: {error}") from error
    served = {
        f"{each.name}.{name}": procedure
        for each in schema.services.values()
        for name, procedure in each.procedures.items()
    }
    found = served.get(args.procedure)
    if found is None:
        names = ", ".join(served) or "none"
        raise CommandError(f"no procedure {args.procedure!r}; there are {names}", status=2)
    return found.service, found.name, args.kind or str(found.kind)


class _Way:
    """Track the progress of connecting, to explain a missing answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._states: set[str] = set()
        self._told = OneShotEvent()  # all states have been reported, by a client thread

    def note(self, state: str) -> None:
        """Record a state of the connection."""
        self._states.add(state)
        if state == "closed":
            self._told.set()

    def explain(self) -> None:
        """Explain why there was no session, if there was none; the client must be closed."""
        self._told.wait(GOODBYE)
        if "connected" in self._states:
            return
        if "handshaking" in self._states:
            wanted = "--codec, --server-id and --metadata must be what the server wants"
            talk(f"wsmux rpc: {self._address} was reached, but started no session: {wanted}")
        else:
            talk(f"wsmux rpc: {self._address} was not reached; -v shows each attempt")


def _rpc(client: Client, order: _Order) -> bool:
    return _show(client.rpc(*order))


def _subscribe(client: Client, order: _Order) -> bool:
    with client.subscribe(*order) as responses:
        return _show_all(responses)


def _upload(client: Client, order: _Order) -> bool:
    # Opened like a stream, so that an answer before the end of stdin is seen.
    with client.stream(*order) as call:
        requests = _Requests(call)
        for result in requests.responses():
            call.close_write()
            return _show(result)
    raise CommandError(f"{order.service}.{order.procedure} ended without an answer")


def _stream(client: Client, order: _Order) -> bool:
    deadline = Deadline(order.timeout)
    with client.stream(*order) as call:
        requests = _Requests(call)
        return _show_all(requests.responses()) and requests.finish(deadline)


_MAKE: dict[str, Callable[[Client, _Order], bool]] = {
    "rpc": _rpc,
    "subscription": _subscribe,
    "upload": _upload,
    "stream": _stream,
}


def _show_all(results: Iterable[Result[Any]]) -> bool:
    """Print all results until the end; return whether none was an error."""
    good = True
    for result in results:
        good = _show(result) and good
    return good


def _show(result: Result[Any]) -> bool:
    from ..rpc import Err

    if isinstance(result, Err):
        _complain(result.error)
        return False
    from .rpc_json import json_text

    emit(json_text(result.value))
    return True


def _complain(error: RiverError) -> None:
    from .rpc_json import json_text

    talk(str(error))
    if error.extra is not None:
        talk(json_text(error.extra))


class _Requests:
    """Send the lines of stdin as requests, in a thread; the end of stdin ends them."""

    def __init__(self, call: StreamCall[Any, Result[Any]]) -> None:
        if sys.stdin is None:
            raise CommandError("stdin is closed, and requests are read from it")
        self._call = call
        self._in = sys.stdin.fileno()
        self._failure: Exception | None = None  # of sending
        self._refusal: RiverError | None = None  # the error with which the call ended meanwhile
        self._thread = threading.Thread(target=self._send, name="wsmux-rpc-stdin", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        from ..rpc import RiverError

        try:
            for number, line in enumerate(_lines(self._in), 1):
                if line.strip():
                    self._call.write(_request(number, line))
            self._call.close_write()
        except RiverError as error:
            self._refusal = error
        except ValueError:
            return  # the command has closed this half after the answer
        except Exception as error:
            self._failure = error
            self._call.cancel("the requests cannot be sent")

    def responses(self) -> Iterator[Result[Any]]:
        """Yield results, to the end or until a request could not be sent.

        Raises:
            CommandError, EncodeError, OSError: a request could not be sent.
        """
        from ..rpc import Err

        for result in self._call:
            if self._failure is not None and isinstance(result, Err):
                raise self._failure  # which caused this error
            yield result

    def finish(self, deadline: Deadline) -> bool:
        """Wait, after the responses, until requests are sent; return whether they were accepted.

        At that point no more input is read from a terminal.
        """
        if os.isatty(self._in):
            return True
        self._thread.join(deadline.remaining())
        if self._thread.is_alive():
            raise TimeoutError("stdin did not end in time")
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            _complain(self._refusal)
        return self._refusal is None


def _request(number: int, line: bytes) -> Any:
    from .rpc_json import parse_json

    try:
        return parse_json(line)
    except ValueError as error:
        raise CommandError(f"line {number} of stdin is not JSON: {error}") from error


def _lines(descriptor: int) -> Iterator[bytes]:
    """Yield lines, unbuffered: a buffered file in use by a daemon thread cannot be shut down."""
    from .rpc_json import MAX_TEXT

    parts: list[bytes] = []
    held = 0
    while chunk := os.read(descriptor, CHUNK):
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        held += len(first)
        for part in rest:
            yield b"".join(parts)
            parts, held = [part], len(part)
        if held > MAX_TEXT:
            raise CommandError(f"a line of stdin holds more than {MAX_TEXT} bytes")
    yield b"".join(parts)
