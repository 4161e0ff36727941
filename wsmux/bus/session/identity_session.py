"""One session of a twin: its tokens, and what it signs and encrypts; for client and gateway.

When a payload is encrypted: the other twin has published a key, and so has this one, as a receiver
must know the key of both. A twin that never had a key is written to in the clear, as the founding
text has it. One that had a key and has none any more is not written to at all: else whoever can
change the directory could read along. If this twin's own key is not on record, payloads travel in
the clear, and a warning says so once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import E2E_FAILURE, FAILED, NO_PUBLIC_KEY, UNKNOWN_TWIN, BusError
from ..twins.records import Twin, TwinDirectory
from ..wire import envelope as envelopes
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA, MAX_ENVELOPE, digest, time_left
from ..wire.keys import Identity
from ..wire.messages import Envelope
from ..wire.tokens import make_token
from ..wire.verification import Received, Verifier

__all__ = ["ERROR_LIFE", "IdentitySession", "clock", "life_until"]

# Seconds for which an error is worth delivering that comes when the request has expired.
ERROR_LIFE = 60

# Twins whose having a key is remembered; the oldest is forgotten.
MAX_KEYS = 100_000

# Bytes of an envelope beside its payload, as far as a check of the payload goes.
OVERHEAD = 4096

_log = logger("wsmux.bus")


def clock() -> int:
    """Return the time as envelopes have it: whole seconds since 1970."""
    return int(time.time())


def life_until(timeout: float) -> int:
    """Return the seconds for which an envelope must live from ``clock()`` on.

    At least as long as the timeout: both are cut to whole seconds.
    """
    now = time.time()
    return math.ceil(now + timeout) - int(now)


class IdentitySession:
    """Speak for one session of a twin. Any thread may use it.

    Args:
        identity: the keys of the twin.
        address: the twin's number, and the session.
        twins: where other twins, and this one's own record, are looked up.
        e2e: false never encrypts; what comes encrypted is still read.
    """

    def __init__(
        self, identity: Identity, address: Address, twins: TwinDirectory, e2e: bool = True
    ) -> None:
        self.identity = identity
        self.address = address
        self._twins = twins
        self._receiver = Verifier(address, identity.secret_box.open, threading.Lock())
        self._e2e = e2e
        self._lock = threading.Lock()
        self._had_key: OrderedDict[int, None] = OrderedDict()
        self._warned = False

    def token(self) -> str:
        """Return a token for one connection."""
        return make_token(self.identity, self.address.twin, self.address.session, clock())

    def twin(self, number: int, deadline: Deadline) -> Twin:
        """Look a twin up; blocks as the directory does.

        Raises:
            BusError: code 103; there is none. TwinsUnavailable: nobody can tell.
        """
        twin = self._twins.get(number, deadline)
        if twin is None:
            raise BusError(UNKNOWN_TWIN, f"unknown twin id '{number}'", retry_safe=True)
        return twin

    def request(
        self,
        uid: str,
        twin: Twin,
        to: Address,
        command: str,
        data: bytes,
        life: int,
        deadline: Deadline,
        *,
        schema: str = JSON_SCHEMA,
        tags: str | None = None,
    ) -> tuple[bytes, bool]:
        """Return a request as it travels, and whether its payload is encrypted.

        Args:
            uid: a new one. twin: who is asked. to: where. command: what for. data: the payload.
            life: seconds from now until it expires.
            deadline: for the look-up of this twin's own record.
            schema: the media type of the payload. tags: see ``Client.call``.

        Raises:
            BusError: code 105; the twin had a key and has none now. Code 500; it is too long.
            ValueError: a text is no Unicode.
        """
        plain, cipher = self._seal(data, twin, deadline)
        made = envelopes.request(
            uid,
            self.address,
            to,
            command,
            clock(),
            life,
            plain=plain,
            cipher=cipher,
            schema=schema,
            tags=tags,
        )
        return self._sign(made), cipher is not None

    def response(
        self, asked: Envelope, twin: Twin, data: bytes, deadline: Deadline, *, encrypted: bool
    ) -> bytes:
        """Return the answer to a request as it travels; it lives as long as the request.

        Args:
            asked: the request. twin: who made it. data: the payload.
            deadline: for the look-up of this twin's own record.
            encrypted: the request was, so that this twin's key is known there.

        Raises:
            BusError: code 105; the twin had a key and has none now. Code 500; it is too long.
        """
        plain, cipher = self._seal(data, twin, deadline, must=encrypted)
        now = clock()
        life = max(1, time_left(asked, now))
        return self._sign(
            envelopes.response(asked, self.address, now, life, plain=plain, cipher=cipher)
        )

    def error(self, asked: Envelope, code: int, message: str) -> bytes:
        """Return the error that answers a request as it travels, even one that has expired."""
        now = clock()
        left = time_left(asked, now)
        life = left if left > 0 else ERROR_LIFE
        return self._sign(envelopes.error(asked, self.address, code, message, now, life))

    def accept(
        self, envelope: Envelope, find: Callable[[int], Twin | None], *, sealed: bool = False
    ) -> Received:
        """Check and decrypt what arrived; see ``Verifier.accept``, which tells what is raised.

        Args:
            envelope: what arrived.
            find: returns the twin that sent it; may look it up.
            sealed: it answers what went encrypted, so that its payload must be, too.

        Raises:
            BusError: code 106; the payload should be encrypted and is not.
        """
        received = self._receiver.accept(envelope, clock(), find)
        if received.twin is None:
            return received
        if received.encrypted and self._e2e:
            self._note_key(received.twin)
        if sealed and received.payload and not received.encrypted:
            text = f"twin {received.twin.id} answered an encrypted request in the clear"
            raise BusError(E2E_FAILURE, text, twin=received.twin.id)
        return received

    def _seal(
        self, data: bytes, twin: Twin, deadline: Deadline, *, must: bool = False
    ) -> tuple[bytes | None, bytes | None]:
        """Return a payload in the clear, or encrypted if that is to be."""
        if len(data) > MAX_ENVELOPE - OVERHEAD:
            text = f"a payload of {len(data)} bytes does not fit an envelope of {MAX_ENVELOPE}"
            raise BusError(FAILED, text, retry_safe=True)
        if not (self._e2e or must):
            return data, None
        if twin.pk is None:
            self._check_never_had(twin, must)
            return data, None
        if not must and not self._is_published(deadline):
            return data, None
        self._note_key(twin)
        return None, self.identity.secret_box.seal(data, twin.pk)

    def _sign(self, envelope: Envelope) -> bytes:
        envelope.signature = self.identity.sign(digest(envelope))
        data = envelope.SerializeToString()
        if len(data) > MAX_ENVELOPE:
            text = f"an envelope of {len(data)} bytes, {MAX_ENVELOPE} are the most"
            raise BusError(FAILED, text, retry_safe=True)
        return data

    def _is_published(self, deadline: Deadline) -> bool:
        own = self._twins.get(self.address.twin, deadline)
        if own is not None and own.pk == self.identity.e2e_public:
            return True
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            _log.warning(
                "the record of twin %d does not have the public key 0x%s: until it is published, "
                "payloads are not encrypted",
                self.address.twin,
                self.identity.e2e_public.hex(),
            )
        return False

    def _note_key(self, twin: Twin) -> None:
        with self._lock:
            self._had_key[twin.id] = None
            if len(self._had_key) > MAX_KEYS:
                self._had_key.popitem(last=False)

    def _check_never_had(self, twin: Twin, must: bool) -> None:
        with self._lock:
            had = twin.id in self._had_key
        if had or must:
            text = f"twin {twin.id} had a public key and has none now: nothing goes in the clear"
            raise BusError(NO_PUBLIC_KEY, text, twin=twin.id, retry_safe=True)
