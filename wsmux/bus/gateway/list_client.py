"""Call twins, and answer them, through the lists of a gateway on this machine.

A gateway (``Peer``, or the reference one) holds the keys and the connections to relays. Programs
beside it exchange JSON with it over lists in Redis; ``GatewayClient`` does that for Python.

Threads and locks: a call runs in the thread of its caller, with a list of its own for the answer.
Each ``serve`` starts one thread, which takes requests while a worker is free, and a pool that runs
the functions. There is no lock but those of the pool and of the Redis library.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...runtime.backoff import Backoff
from ...runtime.capacity_limiter import CapacityLimiter
from ...runtime.closing import Closing
from ...runtime.deadline import LONGEST_WAIT, Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...runtime.thread_pool import ThreadPool
from ...runtime.threads import daemon_thread, start_thread
from ...storage.redis_client import FAILURES, explain, redis_client
from ..client import TIMEOUT, WORKERS
from ..errors import E2E_FAILURE, EXPIRED, FAILED, BadMessage, BusError, CallTimeout, remote_error
from ..services import Command, Function, ServiceRequest, check_command, decode, encode, sendable
from ..session.identity_session import clock, life_until
from ..wire.envelope import JSON_SCHEMA
from .json_messages import (
    MAX_DESTINATIONS,
    MAX_LIFE,
    IncomingRequest,
    IncomingResponse,
    JsonError,
    OutgoingRequest,
    OutgoingResponse,
    outgoing_request,
    outgoing_response,
    parse_incoming_request,
    parse_incoming_response,
)
from .queue_names import command_queue
from .redis_store import DOUBT, FIRST_PAUSE, LOCAL, LONGEST_PAUSE, LOOK, REDIS

__all__ = ["GatewayClient"]

_log = logger("wsmux.bus")


class GatewayClient(Closing):
    """Exchange requests and answers with the gateway that uses a Redis database.

    ::

        with GatewayClient("redis://localhost:6379") as gateway:
            gateway.serve({"billing.add": sum})
            print(gateway.call(7, "tax.rate", "NL", timeout=10))

    Every method may be called from any thread. Leaving a ``with`` block closes the client.

    Args:
        redis: the URL of the Redis server and database that the gateway uses.

    Raises:
        ValueError: it is not a Redis URL.
    """

    def __init__(self, redis: str = REDIS) -> None:
        self._redis: Any = redis_client(redis)
        self._closing = OneShotEvent()
        self._takers: list[tuple[threading.Thread, CapacityLimiter, ThreadPool]] = []

    def call(
        self,
        twin: int,
        command: str,
        payload: Any = None,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
    ) -> Any:
        """Call a command of another twin and return its answer; both payloads are JSON.

        Args:
            twin: the number of the twin.
            command: the name of the command.
            payload: any value that JSON can represent.
            timeout: seconds for the whole call, up to 1800, after which the request expires.
            tags: as in ``Client.call``.

        Raises:
            BusError: the other twin, a relay or the gateway answered with an error, or Redis is
                down (500).
            CallTimeout: no answer came in time. ``retry_safe`` is true if no gateway took the
                request, which is then taken back.
            TypeError, ValueError: an argument is invalid, or the client is closed.
        """
        (outcome,) = self.call_all([twin], command, payload, timeout=timeout, tags=tags).values()
        if isinstance(outcome, BusError):
            raise outcome
        return outcome

    def call_all(
        self,
        twins: Iterable[int],
        command: str,
        payload: Any = None,
        *,
        timeout: float = TIMEOUT,
        tags: str | None = None,
    ) -> dict[int, Any]:
        """Call a command of several twins at once, and return the outcome of each.

        An outcome is the answer, or the ``BusError`` that ``call`` would raise. Blocks until all
        have answered, for at most ``timeout`` seconds. Arguments and errors are those of ``call``.

        Raises:
            BusError: code 500; Redis is down, so nothing is known to have been sent.
            TypeError, ValueError: an argument is invalid, or the client is closed.
        """
        numbers = list(dict.fromkeys(twins))
        if len(numbers) > MAX_DESTINATIONS:
            raise ValueError(f"expected at most {MAX_DESTINATIONS} twins, got {len(numbers)}")
        check_command(command)
        if not 0 < timeout <= MAX_LIFE:
            raise ValueError(f"expected a timeout up to {MAX_LIFE} seconds, got {timeout}")
        self._check_open()
        data, deadline, life = encode(payload), Deadline(timeout), life_until(timeout)
        answers = f"wsmux.answers.{uuid.uuid4().hex}"
        requests = {
            str(number): outgoing_request(
                OutgoingRequest(
                    reference=str(number),
                    command=command,
                    expiration=life,
                    data=data,
                    tags=tags,
                    destinations=(number,),
                    reply_to=answers,
                    schema=JSON_SCHEMA,
                    timestamp=clock(),
                )
            )
            for number in numbers
        }
        found = self._exchange(requests, answers, deadline)
        return {number: self._outcome(number, found.get(str(number))) for number in numbers}

    def serve(self, functions: Mapping[str, Function], workers: int = WORKERS) -> None:
        """Answer these commands from now on; returns at once.

        Functions are called as by ``Client.serve``; ``request.encrypted`` is false, since a gateway
        does not say it. Several programs may serve the same command: each request goes to one of
        them. A program that dies loses the requests that it has taken, and their calls time out.

        Raises:
            ValueError: a command is empty or not allowed as the name of a list, ``workers`` is
                below 1, or the client is closed.
            TypeError: a function is not callable.
            NoThreadError: the system has no thread left; nothing is served.
        """
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        commands = {
            command_queue(name).encode(): Command(name, function)
            for name, function in functions.items()
        }
        self._check_open()
        if not commands:
            return
        pool = ThreadPool(workers, "wsmux-bus-lists")
        room = CapacityLimiter(workers, 0)  # counts the requests alone
        take = partial(self._take, commands, room, pool)
        thread = daemon_thread(take, name="wsmux-bus-lists-take")
        start_thread(thread)
        self._takers.append((thread, room, pool))

    def close(self, timeout: float | None = 5.0) -> None:
        """Take no more requests, and wait at most ``timeout`` seconds for those that are running.

        Calls that are waiting end with ``ValueError``. May be called twice.
        """
        deadline = Deadline(timeout)
        self._closing.set()
        takers = list(self._takers)
        for _, room, _ in takers:
            room.close()
        for thread, _, pool in takers:  # what a thread has just taken is still run
            thread.join(deadline.remaining())
            pool.close()
        for _, _, pool in takers:
            pool.join(deadline)
        self._redis.close()

    # Calls

    def _exchange(
        self, requests: Mapping[str, bytes], answers: str, deadline: Deadline
    ) -> dict[str, IncomingResponse | bytes]:
        """Push requests, and return by reference the response to each, or the request itself.

        A request is returned if it was still in the list of the gateway when the time was up.
        """
        if not requests:
            return {}
        try:
            self._redis.lpush(LOCAL, *requests.values())
        except FAILURES as error:
            raise BusError(FAILED, explain(error)) from error
        found: dict[str, IncomingResponse | bytes] = {}
        read, expires = f"{answers}.read", False
        doubt: Deadline | None = None  # until when what a failed read moved may turn up
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        try:
            while len(found) < len(requests) and not deadline.expired():
                self._check_open()
                try:
                    raw = self._redis.blmove(answers, read, LOOK, src="RIGHT", dest="LEFT")
                    if raw is not None and not expires:  # a program that dies leaves them so long
                        self._redis.expire(read, MAX_LIFE)
                        expires = True
                    if raw is None and doubt is not None:
                        over = doubt.expired()
                        self._look_again(read, requests, found)
                        doubt = None if over else doubt
                    backoff.reset()
                except FAILURES as error:
                    # It may have moved an answer, or do so only now, and the reply was lost.
                    doubt = Deadline(DOUBT)
                    _log.warning("%s; retrying", explain(error))
                    self._closing.wait(min(backoff.next(), deadline.remaining() or 0))
                    continue
                if raw is not None:
                    self._note(raw, requests, found)
            try:
                if doubt is not None and len(found) < len(requests):
                    self._look_again(read, requests, found)
                self._take_back(requests, found)
            except FAILURES as error:
                _log.info("requests are left to the gateway: %s", explain(error))
        finally:
            self._forget(answers, read)
        return found

    def _look_again(
        self, read: str, requests: Mapping[str, bytes], found: dict[str, IncomingResponse | bytes]
    ) -> None:
        """Note the answers that were moved; Redis may fail."""
        moved: Sequence[bytes] = self._redis.lrange(read, 0, -1)
        for raw in moved:
            self._note(raw, requests, found)

    def _note(
        self,
        raw: bytes,
        requests: Mapping[str, bytes],
        found: dict[str, IncomingResponse | bytes],
    ) -> None:
        try:
            response = parse_incoming_response(raw)
        except BadMessage as error:
            _log.warning("an answer of the gateway is dropped: %s", error)
            return
        if response.reference is not None and response.reference in requests:
            found.setdefault(response.reference, response)

    def _take_back(
        self, requests: Mapping[str, bytes], found: dict[str, IncomingResponse | bytes]
    ) -> None:
        """Remove requests without an answer from the list of the gateway, if they are there."""
        for reference in requests.keys() - found.keys():
            if self._redis.lrem(LOCAL, 1, requests[reference]):
                found[reference] = requests[reference]

    def _forget(self, answers: str, read: str) -> None:
        """Delete the lists of a call; answers that come later expire, as the gateway provides."""
        try:
            self._redis.delete(answers, read)
        except FAILURES as error:
            _log.info("the answers %s are left in Redis: %s", answers, explain(error))

    def _outcome(self, number: int, response: IncomingResponse | bytes | None) -> Any:
        """Return a twin's answer, or the error that its call ends with."""
        if response is None:
            return CallTimeout("timed out waiting for the answer", number)
        if isinstance(response, bytes):
            text = "no gateway took the request: is 'wsmux peer' running on this Redis database?"
            return CallTimeout(text, number, retry_safe=True)
        if response.error is None:
            try:
                return decode(response.data, response.schema or JSON_SCHEMA)
            except BusError as error:
                return error
        code, message = response.error
        if response.source is None and code == EXPIRED:  # it may have been sent
            return CallTimeout(message, number)
        twin = None if response.source is None else number
        if code == E2E_FAILURE:  # the gateway may have made it of an answer that it cannot read
            return BusError(code, message, twin=twin)
        return remote_error(code, message, twin)

    # Services

    def _take(
        self, commands: Mapping[bytes, Command], room: CapacityLimiter, pool: ThreadPool
    ) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while not self._closing.is_set():
            if not room.enter(0, Deadline(None)):
                return
            taken = None
            try:
                taken = self._redis.brpop(list(commands), LOOK)
                backoff.reset()
            except FAILURES as error:
                if not self._closing.is_set():
                    _log.warning("%s; retrying", explain(error))
                    self._closing.wait(backoff.next())
            if taken is None:
                room.leave(0)
                continue
            queue, raw = taken

            pool.submit(partial(self._answer, commands[queue], raw, room))

    def _answer(self, command: Command, raw: bytes, room: CapacityLimiter) -> None:
        try:
            request = parse_incoming_request(raw)
            left = request.timestamp + request.expiration - clock()
            deadline = Deadline(min(max(0, left), LONGEST_WAIT))
            if deadline.expired():
                source = request.source.shown()
                _log.info("a request of twin %s had expired when it was taken", source)
                return
            self._respond(request, command, deadline)
        except BusError as error:
            _log.warning("a request is not answered: %s", error)
        finally:
            room.leave(0)

    def _respond(self, request: IncomingRequest, command: Command, deadline: Deadline) -> None:
        data, error = b"", None
        try:
            data = command.run(
                ServiceRequest(
                    request.source,
                    request.command,
                    request.data,
                    request.schema or JSON_SCHEMA,
                    request.tags or "",
                    deadline,
                    encrypted=False,
                )
            )
        except BusError as failure:
            error = JsonError(*sendable(failure))
        response = OutgoingResponse(
            request.reference, data, request.source, request.schema, clock(), error
        )
        self._push(request.reply_to, outgoing_response(response), deadline)

    def _push(self, queue: str, message: bytes, deadline: Deadline) -> None:
        """Push a response, trying until its request expires; a second one is ignored there."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                self._redis.lpush(queue, message)
                return
            except FAILURES as error:
                if deadline.expired() or self._closing.wait(
                    min(backoff.next(), deadline.remaining() or 0)
                ):
                    raise BusError(FAILED, explain(error)) from error

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ValueError("this client of a gateway is closed")
