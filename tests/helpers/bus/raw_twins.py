"""Twins that call and answer each other with raw envelopes, and outlive their relays."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from wsmux.bus.errors import BusError, CallTimeout, Replayed, remote_error
from wsmux.bus.session.link import Link, dial
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address, address_of
from wsmux.bus.wire.envelope import Kind, digest, parse, request, response, time_left
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.tokens import make_token
from wsmux.bus.wire.verification import Verifier
from wsmux.exceptions import ConnectionClosed, HandshakeError
from wsmux.runtime.deadline import Deadline

from ..timeouts import WAIT
from .relays import identity

__all__ = ["RawTwin"]

# Seconds between two attempts to connect, and for one envelope to find room in a link.
PAUSE = 0.05
ROOM = 1.0


@dataclass
class _Call:
    """Wait for one answer."""

    done: threading.Event = field(default_factory=threading.Event)
    answer: Envelope | None = None
    failure: BusError | None = None


class RawTwin:
    """One twin on several relays: each link is made again when it ends.

    Attributes:
        handled: how often each request was answered here, by uid.
        answers: how many answers each call from here got.
        refused: what came and could not be believed.
    """

    def __init__(
        self, number: int, urls: Sequence[str], find: Callable[[int], Twin | None]
    ) -> None:
        self.address = Address(number)
        self.handled: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.refused: list[BusError] = []
        self._identity = identity(number)
        self._find = find
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._links: dict[str, Link] = {}
        self._receiver = Verifier(self.address, _no_cipher, threading.Lock())
        self._calls: dict[str, _Call] = {}
        self._requests: queue.Queue[Envelope | None] = queue.Queue()
        self._closed = threading.Event()
        self._urls = tuple(urls)
        self._threads = [threading.Thread(target=self._serve)]
        self._threads += [threading.Thread(target=self._connect, args=(url,)) for url in urls]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._requests.put(None)
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.abort()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()

    def is_connected(self) -> bool:
        """Return whether every link stands."""
        with self._lock:
            return len(self._links) == len(self._urls)

    def call(self, twin: int, payload: bytes, life: int) -> bytes:
        """Ask another twin to echo; wait until the request has expired at most.

        Raises:
            BusError: a relay or the twin refused, or no relay was connected in time.
            CallTimeout: no answer came.
        """
        deadline = Deadline(life)
        uid = str(uuid.uuid4())
        asked = request(
            uid, self.address, Address(twin), "echo", int(time.time()), life, plain=payload
        )
        call = self._calls[uid] = _Call()
        self._send(asked, deadline)
        if not call.done.wait(deadline.remaining()):
            raise CallTimeout("no answer came before the request expired", twin)
        if call.failure is not None:
            raise call.failure
        assert call.answer is not None
        return call.answer.plain

    def _send(self, envelope: Envelope, deadline: Deadline) -> None:
        """Sign an envelope and hand it to a link, waiting for one."""
        envelope.signature = self._identity.sign(digest(envelope))
        data = envelope.SerializeToString()
        while True:
            with self._lock:
                while not self._links:
                    if deadline.expired():
                        raise BusError(0, "no relay was connected in time", retry_safe=True)
                    self._changed.wait(deadline.remaining())
                url, link = next(iter(self._links.items()))
            try:
                link.send(data, Deadline(ROOM))
            except (ConnectionClosed, TimeoutError):
                self._drop(url, link)
            else:
                return

    def _drop(self, url: str, link: Link) -> None:
        with self._lock:
            if self._links.get(url) is link:
                del self._links[url]

    # A link's thread

    def _connect(self, url: str) -> None:
        while not self._closed.is_set():
            try:
                link = dial(url, self._token, Deadline(WAIT))
            except (OSError, HandshakeError):
                self._closed.wait(PAUSE)
                continue
            with self._lock:
                self._links[url] = link
                self._changed.notify_all()
            if self._closed.is_set():
                link.abort()
            for data in link.messages():
                self._receive(data)
            link.discard()
            self._drop(url, link)

    def _token(self) -> str:
        return make_token(self._identity, self.address.twin, None, int(time.time()))

    def _receive(self, data: bytes) -> None:
        envelope = parse(data)
        try:
            received = self._receiver.accept(envelope, int(time.time()), self._find)
        except Replayed:
            return  # relays deliver at least once
        except BusError as error:
            self.refused.append(error)
            return
        if received.kind is Kind.REQUEST:
            self._requests.put(envelope)
        else:
            self._resolve(envelope, received.kind)

    def _resolve(self, envelope: Envelope, kind: Kind) -> None:
        call = self._calls[envelope.uid]
        if kind is Kind.RESPONSE:
            self.answers[envelope.uid] += 1
            call.answer = envelope
        else:
            source = address_of(envelope.source)
            call.failure = remote_error(
                envelope.error.code, envelope.error.message, source.twin if source else None
            )
        call.done.set()

    # The thread that answers

    def _serve(self) -> None:
        while (asked := self._requests.get()) is not None:
            self.handled[asked.uid] += 1
            now = int(time.time())
            life = time_left(asked, now)
            answer = response(asked, self.address, now, max(life, 1), plain=asked.plain)
            try:
                self._send(answer, Deadline(max(life, 1)))
            except BusError:
                continue  # no relay until the request has expired: its caller knows


def _no_cipher(cipher: bytes, key: bytes) -> bytes:
    raise AssertionError("nobody encrypts here")
