"""Run the gateway of a twin, which lets programs on its machine exchange JSON over Redis lists.

Threads and locks:

- One thread per relay connects and reads. It parses each message and passes it to a pool; while a
  thousand messages wait there, it stops reading, and the relay keeps the rest.
- Two threads take what programs push, one from each list, and pass it to a second pool; while 64
  messages are in progress they stop taking, and Redis keeps the rest. There are two pools so that
  requests waiting for a relay do not delay incoming messages. Messages from one session of a twin
  stay in order; requests of programs may overtake each other.
- One thread answers requests that no service takes (see ``unserved``).
- One thread, at the start, restores what the previous gateway had taken, resends requests without
  an answer, then compares the twin's record with its key and relays. Nothing waits for the
  comparison: the gateway must work while the directory is unavailable.
- One thread tells callers whose requests have expired, and discards uploads of others that were not
  completed. Another one, when a connection to a relay was lost, sends requests without an answer
  again (see ``resender``).
- One thread for each file that is sent; see ``upload_progress``.

``redis_store`` describes how messages survive a crash. Only one gateway may use a Redis database,
and only one may be connected for a twin: a second one replaces the first. A gateway without Redis
can serve nobody, so it stays away from the relays, which keep its messages or give them to another
gateway of the twin; it leaves when its reads fail and connects when Redis answers.
"""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...exceptions import NoThreadError
from ...runtime.capacity_limiter import CapacityLimiter
from ...runtime.closing import Closing
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...runtime.thread_pool import SerialExecutor, ThreadPool
from ...runtime.threads import daemon_thread, start_thread
from ..client import FIND_TIMEOUT, directory_of, own_twin, urls_of
from ..errors import BusError
from ..session.asked_requests import AskedRequests
from ..session.identity_session import IdentitySession
from ..session.publish import publish
from ..session.relay_connection import RelayConnection, RelayStatus, host_of
from ..session.relay_pool import RelayPool
from ..session.resender import Resender
from ..twins.records import TwinDirectory
from ..twins.sources import TwinSource
from ..wire.address import Address, address_of
from ..wire.keys import Identity
from ..wire.messages import Envelope
from .batch import Batch
from .expiry import Expiry
from .inbound import Inbound
from .outbound import Outbound
from .redis_store import LOCAL, REDIS, REPLY, RedisStore
from .uploads import Uploads

__all__ = ["Peer"]

# Messages in progress from programs, and from relays, and the bytes of either.
MAX_OUT, MAX_IN = 64, 1000
MAX_BYTES = 64 * 1024 * 1024

WORKERS = 16

# Seconds between attempts to reach Redis, and between looks for expired requests.
PAUSE = 1.0

# Seconds for which a connection is not read while messages that it brought are dealt with: one may
# wait for a directory.
SETTLE = 1.0

_log = logger("wsmux.bus")


class Peer(Closing):
    """Run a gateway until it is closed; leaving a ``with`` block closes it.

    Args:
        identity: the keys of the twin.
        relays: the addresses of up to four relays, the preferred one first.
        twins: as for ``Client``.
        redis: the URL of the Redis server that has the lists.
        twin: this twin's number; looked up by its account if omitted.
        e2e: encrypt payloads where possible; see ``identity_session``.
        update: compare the twin's record with its key and relays, and update it if they differ.
        uploads: the directory for files that others upload; ``None`` disables uploads both ways.
        workers: the maximum number of threads per direction.
        ssl_context: the TLS settings for connections to relays.

    Raises:
        BusError: code 103; the directory has no twin with this account.
        TwinsUnavailable: the directory could not be asked.
        ValueError: a URL, or the number of relays, is invalid; or a relay that is to be written to
            the record has an IP address instead of a name.
        OSError: the directory for uploads cannot be used.
        NoThreadError: the system has no thread left.
    """

    def __init__(
        self,
        identity: Identity,
        relays: str | Sequence[str],
        twins: TwinDirectory | TwinSource | Sequence[TwinSource],
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
            self._batches = threading.local()
            self._relay_pool = RelayPool(
                urls,
                endpoint.token,
                self._receive,
                ssl_context,
                # Programs may wait for it at any time, and others for its services.
                urgent=lambda: True,
                lost=self._lost,
                settle=self._settle,
            )
            self._uploads = Uploads(endpoint, self._relay_pool, self._store, uploads)
        except BaseException:
            self._let_go()
            raise
        shared = (endpoint, self._relay_pool, self._store, AskedRequests(), self._uploads, Expiry())
        self._outgoing, self._incoming = Outbound(*shared), Inbound(*shared)
        name = f"wsmux-bus-peer-{number}"
        self._resender = Resender(f"{name}-resend", self._relay_pool, self._outgoing.unanswered)
        self._out, self._in = ThreadPool(workers, f"{name}-out"), ThreadPool(workers, f"{name}-in")
        self._ordered = SerialExecutor(self._in)
        self._out_room, self._in_room = (
            CapacityLimiter(MAX_OUT, MAX_BYTES),
            CapacityLimiter(MAX_IN, MAX_BYTES),
        )
        self._closing = OneShotEvent()
        self._closed = OneShotEvent()
        outgoing = self._outgoing
        runs: list[tuple[str, Callable[[], None]]] = [
            ("start", self._begin),
            ("local", lambda: self._take(LOCAL, outgoing.request, self._reach)),
            ("reply", lambda: self._take(REPLY, outgoing.response)),
            ("unserved", self._incoming.unserved.run),
            ("expiry", self._tell_expired),
        ]
        self._put_back = OneShotEvent()
        self._threads: list[threading.Thread] = []
        self._relay_pool.hold("Redis has not answered yet")
        try:
            self._relay_pool.start()
            for what, run in runs:
                thread = daemon_thread(target=run, name=f"{name}-{what}")
                start_thread(thread)
                self._threads.append(thread)
        except NoThreadError:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Peer {self.address} {'closed' if self._closing.is_set() else 'running'}>"

    def relays(self) -> list[RelayStatus]:
        """Return the state of the connection to each relay, and why it is down if it is."""
        return self._relay_pool.status()

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until at least one relay is connected.

        Args:
            timeout: seconds; ``None`` waits without limit.

        Raises:
            CallTimeout: no relay was connected in time; the message says why. The gateway keeps
                trying.
        """
        self._relay_pool.wait_connected(Deadline(timeout))

    def serve_forever(self) -> None:
        """Block until another thread closes the gateway."""
        self._closed.wait()

    def close(self, timeout: float | None = 5.0) -> None:
        """Stop, waiting at most ``timeout`` seconds; may be called twice.

        Messages that are not sent or answered by then stay in Redis for the next start.
        """
        deadline = Deadline(timeout)
        self._closing.set()
        self._out_room.close()
        self._in_room.close()
        self._store.stop()
        self._incoming.unserved.close()
        self._uploads.stop()
        self._relay_pool.close(deadline)
        for pool in (self._out, self._in):
            pool.close()
        for pool in (self._out, self._in):
            pool.join(deadline)
        self._uploads.close(deadline)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(deadline.remaining())
        self._let_go()
        self._closed.set()

    def _let_go(self) -> None:
        self._store.close()
        if self._owned is not None:
            self._owned.close()

    # Threads of the connections

    def _receive(self, envelope: Envelope, size: int, _: RelayConnection) -> None:
        if not self._in_room.enter(size, Deadline(None)):
            return

        batch = self._batch()
        batch.begin()

        def take() -> None:
            try:
                self._incoming.take(envelope)
            finally:
                self._in_room.leave(size)
                batch.end()

        # Messages of one session stay in order; the chunks of an upload depend on it.
        self._ordered.submit(address_of(envelope.source), take)

    def _batch(self) -> Batch:
        """Return the batch of messages that this thread is reading."""
        if not hasattr(self._batches, "current"):
            self._batches.current = Batch()
        batch: Batch = self._batches.current
        return batch

    def _settle(self) -> None:
        """Wait, but not for long, until what was read is in Redis: the relay may then forget it."""
        self._batch().wait(Deadline(SETTLE))
        self._batches.current = Batch()

    def _lost(self) -> None:
        if not self._closing.is_set():
            self._resender.lost()
            self._uploads.connection_lost()

    # Threads that take from the lists

    def _take(
        self,
        queue: str,
        handle: Callable[[bytes], None],
        note: Callable[[BusError | None], None] = lambda failure: None,
    ) -> None:
        """Take messages until closed; ``note`` is told after each attempt how it ended."""
        self._put_back.wait()
        while not self._closing.is_set():
            try:
                raw = self._store.take(queue)
            except BusError as error:
                _log.warning("taking from %s failed: %s", queue, error)
                note(error)
                self._store.pause(PAUSE)
                continue
            note(None)
            if raw is None:
                continue
            # If the gateway closes first, the message stays in the list of taken ones.
            if self._out_room.enter(len(raw), Deadline(None)):
                self._out.submit(partial(self._handle, len(raw), partial(handle, raw)))

    def _reach(self, failure: BusError | None) -> None:
        """Stay connected while Redis answers, and away from the relays while it does not."""
        if failure is None:
            self._relay_pool.release()
        else:
            self._relay_pool.hold(failure.message)

    def _handle(self, size: int, handle: Callable[[], None]) -> None:
        try:
            handle()
        except BusError as error:
            _log.warning("a message of a program is kept for the next start: %s", error)
        except ValueError as error:
            _log.info("a message of a program is kept for the next start: %s", error)
        finally:
            self._out_room.leave(size)

    # Expiry thread

    def _tell_expired(self) -> None:
        while not self._closing.wait(PAUSE):
            for look in (self._outgoing.tell_expired, self._uploads.discard_ended):
                try:
                    look()
                except Exception:  # callers whose requests expire later must be told, too
                    _log.exception("what has expired was not all dealt with")

    # Start-up thread

    def _begin(self) -> None:
        try:
            self._recover()
        except BusError as error:
            _log.warning("requests of the previous gateway cannot be resent: %s", error)
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
        """Restore messages and requests that the previous gateway left unfinished."""
        forever = Deadline(None)
        unanswered = list(self._store.unanswered(forever))
        count = self._store.put_back(forever)
        self._relay_pool.release()
        self._put_back.set()
        if count or unanswered:
            _log.info("restored %d messages, resending %d requests", count, len(unanswered))
        for each in unanswered:
            if each.waiting.module is not None:
                self._uploads.start(each, resumed=True)
            elif self._out_room.enter(len(each.signed), forever):
                send = partial(self._outgoing.send, each)
                self._out.submit(partial(self._handle, len(each.signed), send))


def domains_of(urls: Sequence[str], *, named: bool) -> tuple[str, ...]:
    """Return the domains under which other relays find these relays.

    Args:
        urls: the addresses of relays.
        named: refuse IP addresses, which must not be written to a record.

    Raises:
        ValueError: an address is not a URL of a relay, or ``named`` and an IP address.
    """
    domains = []
    for url in urls:
        host = host_of(url)
        if named and _is_number(host):
            text = f"{url} has no name to put on record: give one, or disable updates"
            raise ValueError(text)
        domains.append(host)
    return tuple(dict.fromkeys(domains))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
