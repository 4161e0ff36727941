"""Answer requests with functions, each call in a thread of a bounded pool.

Threads and locks: ``take`` runs in the thread of a connection and never blocks. Looking up the
sender, checking its signature and decrypting run in the pool, since the directory may be slow. The
lock here guards the commands and the answer cache.

The requests waiting for the pool are bounded in number and bytes. Beyond that, and for commands
that are not served, an error is sent at once; the reference peer leaves such requests unanswered.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..runtime.capacity_limiter import CapacityLimiter
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.thread_pool import ThreadPool
from .errors import FAILED, BusError, Replayed
from .session.answer_cache import AnswerCache
from .session.identity_session import IdentitySession, clock, deadline_of
from .session.relay_connection import RelayConnection
from .session.relay_pool import RelayPool
from .wire.address import Address
from .wire.envelope import JSON_SCHEMA, parse, time_left
from .wire.messages import Envelope
from .wire.names import is_reserved
from .wire.verification import Received

__all__ = [
    "Command",
    "Function",
    "ServiceRequest",
    "Services",
    "check_command",
    "decode",
    "encode",
    "sendable",
]

# Called with the payload and, if it requires two arguments, the ServiceRequest; returns the answer.
Function = Callable[..., Any]

# Requests waiting for a thread, and their bytes.
MAX_WAITING = 1000
MAX_WAITING_BYTES = 64 * 1024 * 1024

MAX_CODE = 2**32 - 1

SAME_SIGNATURE = "a request with the same signature and another uid is under way"

_log = logger("wsmux.bus")


class ServiceRequest(NamedTuple):
    """Describe the request that a function answers.

    Attributes:
        source: the caller; its signature was checked.
        command: the command that was called.
        data: the payload as received, decrypted.
        schema: the media type of the payload.
        tags: the tags of the envelope.
        deadline: when the request expires.
        encrypted: whether the payload was encrypted.
    """

    source: Address
    command: str
    data: bytes
    schema: str
    tags: str
    deadline: Deadline
    encrypted: bool


class _Served(NamedTuple):
    command: Command
    pool: ThreadPool


def encode(value: Any) -> bytes:
    """Return a value as JSON, never empty: the npm client takes an empty payload for no answer.

    Raises:
        TypeError, ValueError: the value cannot be represented in JSON.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode(data: bytes, schema: str) -> Any:
    """Return the value of a JSON payload, ``None`` for an empty one.

    Raises:
        BusError: code 500; the payload is not JSON.
    """
    if schema.partition(";")[0].strip().lower() not in ("", JSON_SCHEMA):
        raise BusError(FAILED, f"the payload is {schema!r}, not JSON")
    try:
        return json.loads(data.decode()) if data else None
    except (ValueError, RecursionError) as error:
        raise BusError(FAILED, f"the payload is not JSON: {error}") from error


class Command:
    """A function that answers a command.

    Args:
        name: the command.
        function: is called with the payload and, if it requires two arguments, the request.

    Raises:
        ValueError: the command is empty.
        TypeError: the function is not callable.
    """

    def __init__(self, name: str, function: Function) -> None:
        check_command(name)
        if not callable(function):
            raise TypeError(f"{name!r} is served by {function!r}, which is not callable")
        self._function = function
        self._wants_request = _wants_request(function)

    def run(self, request: ServiceRequest) -> bytes:
        """Call the function, and return its answer as JSON.

        Raises:
            BusError: from the function. Code 500, after a line in the log: the payload or the
                answer is not JSON, or the function failed.
        """
        try:
            payload = decode(request.data, request.schema)
            args = (payload, request) if self._wants_request else (payload,)
            return encode(self._function(*args))
        except BusError:
            raise
        except Exception as error:
            _log.exception("the function of %r failed", request.command)
            raise BusError(FAILED, f"{type(error).__name__}: {error}") from error


def check_command(command: object) -> None:
    """Check the name of a command to be served.

    Raises:
        TypeError: it is not a string, as when a decorator was used without a command.
        ValueError: it is empty.
    """
    if not isinstance(command, str):
        raise TypeError(f'expected a command, as in @service("billing.add"), got {command!r}')
    if not command:
        raise ValueError("a command is empty: give each a name")


class Services:
    """Serve the commands of one client."""

    def __init__(self, name: str, endpoint: IdentitySession, relay_pool: RelayPool) -> None:
        self._name = name
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._lock = threading.Lock()
        self._commands: dict[str, _Served] = {}
        self._pools: dict[ThreadPool, int] = {}  # and how many threads each may have
        self._room = CapacityLimiter(MAX_WAITING, MAX_WAITING_BYTES)
        self._answers = AnswerCache()
        self._under_way: dict[tuple[int, bytes], str] = {}  # what waits or runs, and its uid
        self._closed = False

    def add(self, functions: Mapping[str, Function], workers: int) -> ThreadPool:
        """Serve more commands, in a pool of their own, which is returned.

        Raises:
            ValueError: a command is empty or already served, ``workers`` is below 1, or the
                services are closed.
            TypeError: a function is not callable.
        """
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        pool = ThreadPool(workers, f"{self._name}-{len(self._pools)}")
        made = {
            name: _Served(Command(name, function), pool) for name, function in functions.items()
        }
        with self._lock:
            twice = sorted(made.keys() & self._commands.keys())
            if twice:
                raise ValueError(f"{twice[0]!r} is already served")
            if self._closed:
                raise ValueError("this bus client is closed")
            self._commands.update(made)
            self._pools[pool] = workers
        return pool

    def remove(self, pool: ThreadPool) -> None:
        """Serve the commands of a pool no more; what waits for it is still run."""
        with self._lock:
            self._commands = {
                name: served for name, served in self._commands.items() if served.pool is not pool
            }
            del self._pools[pool]
        pool.close()

    def threads(self) -> int:
        """Return how many functions may run at once."""
        with self._lock:
            count = sum(self._pools.values())
        return count

    def any_served(self) -> bool:
        """Return whether any command is served."""
        return bool(self._commands)

    def take(self, envelope: Envelope, size: int, relay: RelayConnection) -> None:
        """Answer a request of ``size`` bytes without blocking; for the threads of connections.

        The answer goes over the relay that the request came over, if that takes it: it counts what
        a worker of a name has yet to answer.
        """
        command = envelope.request.command
        served = self._commands.get(command)
        key = envelope.source.twin, bytes(envelope.signature)  # which copies share
        if served is None:
            text = f"twin {self._endpoint.address} serves no {command[:80]!r}"
            self._refuse(envelope, text, relay)
        elif (uid := self._under_way.get(key)) is not None:
            if uid != envelope.uid and is_reserved(envelope.destination.connection):
                self._refuse(envelope, SAME_SIGNATURE, relay)
            _log.debug("a copy of a request that waits or runs is dropped")
        elif self._closed and is_reserved(envelope.destination.connection):
            _log.debug("a request to a name is left to its next worker")
        elif self._closed:
            self._refuse(envelope, f"twin {self._endpoint.address} is closing", relay)
        elif not self._room.enter(size, Deadline(0)):
            self._refuse(envelope, "too many requests are waiting: try again later", relay)
        else:
            with self._lock:
                self._under_way[key] = envelope.uid
            served.pool.submit(lambda: self._serve(envelope, size, served, key, relay))

    def close(self, deadline: Deadline) -> None:
        """Refuse further requests, and wait for running functions until the deadline."""
        with self._lock:
            self._closed = True
            pools = list(self._pools)
        for pool in pools:
            pool.close()
        for pool in pools:
            pool.join(deadline)

    # Pool threads

    def _serve(
        self,
        envelope: Envelope,
        size: int,
        served: _Served,
        key: tuple[int, bytes],
        relay: RelayConnection,
    ) -> None:
        self._room.leave(size)
        try:
            self._accept(envelope, served, key, relay)
        finally:
            with self._lock:
                self._under_way.pop(key, None)

    def _accept(
        self,
        envelope: Envelope,
        served: _Served,
        key: tuple[int, bytes],
        relay: RelayConnection,
    ) -> None:
        deadline = deadline_of(envelope)
        endpoint = self._endpoint
        try:
            received = endpoint.accept(envelope, lambda number: endpoint.twin(number, deadline))
        except Replayed as error:
            with self._lock:
                again = self._answers.find(key)
                self._under_way.pop(key, None)  # whoever gets this answer may send another copy
            # The relay waits for an answer with this uid, and hands this worker less until then.
            # One signature may be that of several uids: it does not tell where each field ends.
            named = is_reserved(envelope.destination.connection)
            if named and (again is None or parse(again).uid != envelope.uid):
                signed = self._error(envelope, error)
                self._relay_pool.answer(signed, deadline, envelope.source.twin, relay)
            else:
                self._relay_pool.answer_again(again, error, relay)
            return
        except BusError as error:
            _log.info("a request from twin %d is refused: %s", envelope.source.twin, error)
            signed = self._error(envelope, error)
            self._relay_pool.answer(signed, deadline, envelope.source.twin, relay)
            return
        signed = self._answer(envelope, received, served, deadline)
        with self._lock:
            self._answers.keep(key, signed)
            self._under_way.pop(key, None)  # from now on, copies get this answer
        self._relay_pool.answer(signed, deadline, envelope.source.twin, relay)

    def _answer(
        self, envelope: Envelope, received: Received, served: _Served, deadline: Deadline
    ) -> bytes:
        """Run the function; return its answer, or the error that it raised, as signed bytes."""
        assert received.source is not None
        assert received.twin is not None  # relays send no requests
        request = ServiceRequest(
            received.source,
            envelope.request.command,
            received.payload,
            envelope.schema,
            envelope.tags,
            deadline,
            received.encrypted,
        )
        try:
            answer = served.command.run(request)
            return self._endpoint.response(
                envelope, received.twin, answer, deadline, encrypted=received.encrypted
            )
        except BusError as error:
            return self._error(envelope, error)

    def _error(self, envelope: Envelope, error: BusError) -> bytes:
        return self._endpoint.error(envelope, *sendable(error))

    # Threads of the connections

    def _refuse(self, envelope: Envelope, text: str, relay: RelayConnection) -> None:
        """Answer, without blocking or checking the sender, that a request is not run."""
        _log.info("a request from twin %d is refused: %s", envelope.source.twin, text)
        if envelope.source.twin and time_left(envelope, clock()) > 0:
            try:
                signed = self._error(envelope, BusError(FAILED, text))
            except BusError as error:  # with a long uid, the answer is too long
                source = envelope.source.twin
                _log.warning("a request from twin %d is not answered: %s", source, error.message)
                return
            self._relay_pool.offer(signed, relay)


def sendable(error: BusError) -> tuple[int, str]:
    """Return the code and the text of an error as messages can carry them."""
    code = error.code if 0 <= error.code <= MAX_CODE else FAILED
    return code, error.message.encode(errors="replace").decode()


def _wants_request(function: Function) -> bool:
    """Return whether a function requires a second argument, not just accepts one."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some C functions have no signature
        return False
    return not _takes(signature, 1) and _takes(signature, 2)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
