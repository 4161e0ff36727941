"""The gateway of a twin: programs on its machine speak JSON to it over lists in Redis.

Threads and locks:

- One thread per relay connects and reads. It parses what comes and hands it to a pool; while a
  thousand messages wait there, it reads no further, and the relay keeps what follows.
- Two threads take what programs push, one from each list, and hand it to a second pool; while 64
  messages are in hand they take no more, and Redis keeps what follows. The pools are apart, so that
  requests which wait for a relay do not hold up what arrives. What one session of a twin sends
  stays in order; requests of programs may overtake each other.
- One thread, at the start, puts back what a gateway before this one had taken, sends again what
  has no answer, then compares the record of the twin with its key and relays. Nothing else waits
  for it: a directory that is gone must not keep the gateway silent.

How messages survive a crash is told in ``redis_store``. Only one gateway may work on a Redis
database, and one be connected for a twin: a second one takes the place of the first.
"""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...runtime.capacity_limiter import CapacityLimiter
from ...runtime.closing import Closing
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.thread_pool import SerialExecutor, ThreadPool
from ...runtime.threads import daemon_thread
from ..client import FIND_TIMEOUT, directory_of, own_twin, urls_of
from ..errors import BadMessage, BusError
from ..session.asked_requests import AskedRequests
from ..session.identity_session import IdentitySession
from ..session.publish import publish
from ..session.relay_connection import RelayStatus, host_of
from ..session.relay_pool import RelayPool
from ..twins.records import TwinDirectory
from ..wire import envelope as envelopes
from ..wire.address import Address, address_of
from ..wire.keys import Identity
from .inbound import Inbound
from .outbound import Outbound
from .redis_store import LOCAL, REPLY, RedisStore, Tracked
from .uploads import Uploads

__all__ = ["Peer"]

REDIS = "redis://localhost:6379"

# Messages of programs in hand, and of relays, each with the bytes of all of them.
MAX_OUT, MAX_IN = 64, 1000
MAX_BYTES = 64 * 1024 * 1024

WORKERS = 16

# Seconds between two looks at a Redis that is gone.
PAUSE = 1.0

_log = logger("wsmux.bus")


class Peer(Closing):
    """Run a gateway, from now on until it is closed; leaving a ``with`` block closes it.

    Args:
        identity: the keys of the twin.
        relays: the addresses of up to four relays, the preferred one first.
        twins: a directory, or what ``twins_from`` takes.
        redis: where the lists are.
        twin: this twin's number; looked up by its account if it is not given.
        e2e: encrypt where that is possible; see ``endpoint``.
        update: compare the own key and relays with the record, and write them where they differ.
        uploads: the directory for files that others upload; ``None`` takes and sends none.
        workers: most threads for each direction.
        ssl_context: how to do TLS with the relays.

    Raises:
        BusError: code 103; the directory has no twin of this account. TwinsUnavailable: it could
            not be asked. ValueError: a URL, or the number of relays, will not do; an update needs
            relays with names, which the record then tells. OSError: the directory for uploads.
    """

    def __init__(
        self,
        identity: Identity,
        relays: str | Sequence[str],
        twins: TwinDirectory | str | Sequence[str],
        redis: str = REDIS,
        *,
        twin: int | None = None,
        e2e: bool = True,
        update: bool = True,
        uploads: Path | None = None,
        workers: int = WORKERS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        urls = urls_of(relays)
        self._domains = domains_of(urls, named=update)
        self._update = update
        self._identity = identity
        self._store = RedisStore(redis)
        self._twins, self._owned = directory_of(twins)
        try:
            number = own_twin(identity, self._twins, twin, Deadline(FIND_TIMEOUT))
            self.address: Address = Address(number)
            endpoint = IdentitySession(identity, self.address, self._twins, e2e)
            self._relay_pool = RelayPool(urls, endpoint.token, self._receive, ssl_context)
            self._uploads = Uploads(endpoint, self._relay_pool, self._store, uploads)
        except BaseException:
            self._let_go()
            raise
        shared = (endpoint, self._relay_pool, self._store, AskedRequests(), self._uploads)
        self._outgoing, self._incoming = Outbound(*shared), Inbound(*shared)
        name = f"wsmux-bus-peer-{number}"
        self._out, self._in = ThreadPool(workers, f"{name}-out"), ThreadPool(workers, f"{name}-in")
        self._ordered = SerialExecutor(self._in)
        self._out_room, self._in_room = (
            CapacityLimiter(MAX_OUT, MAX_BYTES),
            CapacityLimiter(MAX_IN, MAX_BYTES),
        )
        self._closing = threading.Event()
        self._closed = threading.Event()
        outgoing = self._outgoing
        runs: list[tuple[str, Callable[[], None]]] = [
            ("start", self._begin),
            ("local", lambda: self._take(LOCAL, outgoing.request)),
            ("reply", lambda: self._take(REPLY, outgoing.response)),
        ]
        self._put_back = threading.Event()
        self._threads = [daemon_thread(target=run, name=f"{name}-{what}") for what, run in runs]
        self._relay_pool.start()
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<Peer {self.address} {'closed' if self._closing.is_set() else 'running'}>"

    def relays(self) -> list[RelayStatus]:
        """Return how it stands with each relay: whether it is connected, and if not, why."""
        return self._relay_pool.status()

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until there is a connection to one relay at least.

        Raises:
            CallTimeout: there is none in time; its text tells why, and attempts go on.
        """
        self._relay_pool.wait_connected(Deadline(timeout))

    def serve_forever(self) -> None:
        """Wait until another thread closes the gateway."""
        self._closed.wait()

    def close(self, timeout: float | None = 5.0) -> None:
        """End everything, waiting at most ``timeout`` seconds; closing twice is fine.

        What is not sent or answered by then stays in Redis, for the next start.
        """
        deadline = Deadline(timeout)
        self._closing.set()
        self._out_room.close()
        self._in_room.close()
        self._store.stop()
        self._uploads.close(deadline)
        self._relay_pool.close(deadline)
        for pool in (self._out, self._in):
            pool.close()
        for pool in (self._out, self._in):
            pool.join(deadline)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(deadline.remaining())
        self._let_go()
        self._closed.set()

    def _let_go(self) -> None:
        self._store.close()
        if self._owned is not None:
            self._owned.close()

    # The threads of the links

    def _receive(self, data: bytes) -> None:
        try:
            envelope = envelopes.parse(data)
        except BadMessage as error:
            _log.warning("a message from a relay is dropped: %s", error)
            return
        size = len(data)
        if not self._in_room.enter(size, Deadline(None)):
            return

        def take() -> None:
            try:
                self._incoming.take(envelope)
            finally:
                self._in_room.leave(size)

        # What one session sends stays in order; the pieces of a file need it.
        self._ordered.submit(address_of(envelope.source), take)

    # The threads that take

    def _take(self, queue: str, handle: Callable[[bytes], None]) -> None:
        self._put_back.wait()
        while not self._closing.is_set():
            try:
                raw = self._store.take(queue)
            except BusError as error:
                _log.warning("taking from %s failed: %s", queue, error)
                self._store.pause(PAUSE)
                continue
            if raw is None:
                continue
            # What finds no room when the gateway closes stays with what was taken.
            if self._out_room.enter(len(raw), Deadline(None)):
                self._out.submit(partial(self._handle, raw, handle))

    def _handle(self, raw: bytes, handle: Callable[[bytes], None]) -> None:
        try:
            handle(raw)
        except BusError as error:
            _log.warning("a message of a program stays for the next start: %s", error)
        except ValueError as error:
            _log.info("a message of a program stays for the next start: %s", error)
        finally:
            self._out_room.leave(len(raw))

    # The thread that starts

    def _begin(self) -> None:
        try:
            self._recover()
        except BusError as error:
            _log.warning("requests left by the previous gateway cannot be resent: %s", error)
        finally:
            self._put_back.set()
        if self._update:
            publish(
                self._identity,
                self.address.twin,
                self._domains,
                self._twins,
                pause=lambda seconds: not self._closing.wait(seconds),
            )

    def _recover(self) -> None:
        """Take up what a gateway before this one did not end."""
        forever = Deadline(None)
        unanswered = list(self._store.unanswered(forever))
        count = self._store.put_back(forever)
        self._put_back.set()
        if count or unanswered:
            _log.info("%d messages are put back, %d are resent", count, len(unanswered))
        for each in unanswered:
            if each.waiting.module is not None:
                self._uploads.lost(each.waiting)
            elif self._out_room.enter(len(each.signed), forever):
                self._out.submit(partial(self._send_again, each))

    def _send_again(self, tracked: Tracked) -> None:
        try:
            self._outgoing.send(tracked)
        except BusError as error:
            _log.warning("a request stays for the next start: %s", error)
        finally:
            self._out_room.leave(len(tracked.signed))


def domains_of(urls: Sequence[str], *, named: bool) -> tuple[str, ...]:
    """Return the domains by which other relays find these.

    Args:
        urls: the addresses of relays.
        named: refuse addresses of numbers, which no record should tell.

    Raises:
        ValueError: one is such an address.
    """
    domains = []
    for url in urls:
        host = host_of(url)
        if named and _is_number(host):
            text = f"{url} has no name to put on record: give one, or no update"
            raise ValueError(text)
        domains.append(host)
    return tuple(dict.fromkeys(domains))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
