"""Make tokens, sign and encrypt for one session of a twin; used by client and gateway.

A payload is encrypted if both twins have published a key, since a receiver needs the sender's. A
twin that never had a key gets plaintext, as from the reference peers. A twin that had a key and no
longer has one gets an error instead: otherwise whoever can change the directory could read the
payloads. If this twin's own key is not on record, payloads are sent in plaintext, and one warning
is logged.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ...runtime.deadline import LONGEST_WAIT, Deadline
from ...runtime.logs import logger
from ..errors import E2E_FAILURE, FAILED, NO_PUBLIC_KEY, UNKNOWN_TWIN, BusError
from ..twins.records import Twin, TwinDirectory
from ..wire import envelope as envelopes
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA, MAX_ENVELOPE, MAX_LIFE, Kind, digest, time_left
from ..wire.keys import Identity
from ..wire.messages import Envelope
from ..wire.tokens import make_token
from ..wire.verification import Received, Verifier

__all__ = ["ERROR_LIFE", "IdentitySession", "clock", "deadline_of", "life_until"]

# Seconds for which the error that answers an expired request is valid.
ERROR_LIFE = 60

# Twins remembered for having had a key; beyond it, the oldest is forgotten.
MAX_KEYS = 100_000

# Bytes reserved for the rest of an envelope when the size of a payload is checked.
OVERHEAD = 4096

_log = logger("wsmux.bus")


def clock() -> int:
    """Return the time as envelopes carry it: whole Unix seconds."""
    return int(time.time())


def life_until(timeout: float) -> int:
    """Return the expiration, in whole seconds from ``clock()``, that covers a timeout.

    Rounded up, since the clock is rounded down.
    """
    now = time.time()
    return math.ceil(now + timeout) - int(now)


def deadline_of(envelope: Envelope) -> Deadline:
    """Return when a received envelope expires; any sender's number becomes one to wait for."""
    return Deadline(min(max(0, time_left(envelope, clock())), LONGEST_WAIT))


class IdentitySession:
    """Sign, encrypt and check for one session of a twin. Any thread may use it.

    Args:
        identity: the keys of the twin.
        address: the twin's number, and the session.
        twins: the directory for other twins and this one's own record.
        e2e: false never encrypts; encrypted messages are still decrypted.
    """

    def __init__(
        self, identity: Identity, address: Address, twins: TwinDirectory, e2e: bool = True
    ) -> None:
        self.identity = identity
        self.address = address
        self._twins = twins
        self._shared: set[Address] = set()
        unseal = identity.secret_box.open
        self._receiver = Verifier(address, unseal, threading.Lock(), also=self._shared)
        self._e2e = e2e
        self._lock = threading.Lock()
        self._had_key: OrderedDict[int, None] = OrderedDict()
        self._warned = False

    def share(self, address: Address) -> None:
        """Accept what is for this address from now on, too: the queue of a name of this twin.

        It stays so, since requests may arrive that were sent before the name was left.
        """
        self._shared.add(address)

    def token(self) -> str:
        """Return a token for one connection."""
        return make_token(self.identity, self.address.twin, self.address.session, clock())

    def twin(self, number: int, deadline: Deadline) -> Twin:
        """Look up a twin; blocks for the directory.

        Raises:
            BusError: code 103; there is no such twin. TwinsUnavailable: the directory could not be
                asked.
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
        """Return a signed request, and whether its payload is encrypted.

        Args:
            uid: a new unique id.
            twin: the twin to ask.
            to: its address, with or without a session.
            command: the command to call.
            data: the payload.
            life: seconds from now until it expires.
            deadline: for the look-up of this twin's own record.
            schema: the media type of the payload.
            tags: see ``Client.call``.

        Raises:
            BusError: code 105; the twin had a key and has none now. Code 500; the request is too
                long.
            ValueError: a text is not valid Unicode.
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

    def request_to_relay(self, uid: str, command: str, data: bytes, life: int) -> bytes:
        """Return a signed request to the relay itself; see ``relay_control``.

        Raises:
            BusError: code 500; it is too long.
        """
        relay = Address(0)
        now = clock()
        made = envelopes.request(uid, self.address, relay, command, now, life, plain=data)
        return self._sign(made)

    def response(
        self, asked: Envelope, twin: Twin, data: bytes, deadline: Deadline, *, encrypted: bool
    ) -> bytes:
        """Return a signed answer to a request, which expires with it, or after ``MAX_LIFE``.

        Args:
            asked: the request.
            twin: the twin that made it.
            data: the payload.
            deadline: for the look-up of this twin's own record.
            encrypted: whether the request was encrypted, so that the twin has this twin's key.

        Raises:
            BusError: code 105; the twin had a key and has none now. Code 500; the answer is too
                long.
        """
        plain, cipher = self._seal(data, twin, deadline, must=encrypted)
        now = clock()
        life = min(max(1, time_left(asked, now)), MAX_LIFE)
        return self._sign(
            envelopes.response(asked, self.address, now, life, plain=plain, cipher=cipher)
        )

    def error(self, asked: Envelope, code: int, message: str) -> bytes:
        """Return a signed error that answers a request, even one that has expired."""
        now = clock()
        left = time_left(asked, now)
        life = min(left, MAX_LIFE) if left > 0 else ERROR_LIFE
        return self._sign(envelopes.error(asked, self.address, code, message, now, life))

    def accept(
        self, envelope: Envelope, find: Callable[[int], Twin | None], *, sealed: bool = False
    ) -> Received:
        """Check and decrypt an envelope; see ``Verifier.accept`` for its errors.

        Args:
            envelope: the envelope.
            find: returns the twin that sent it; may look it up.
            sealed: it answers an encrypted request, so its payload must be encrypted too. An error
                may have any payload: what it reports is its code and text, which never are.

        Raises:
            BusError: code 106; the payload is in plaintext but must be encrypted.
        """
        received = self._receiver.accept(envelope, clock(), find)
        if received.twin is None:
            return received
        if received.encrypted and self._e2e:
            self._note_key(received.twin)
        plain = bool(received.payload) and not received.encrypted
        if sealed and plain and received.kind is not Kind.ERROR:
            text = f"twin {received.twin.id} answered an encrypted request in plaintext"
            raise BusError(E2E_FAILURE, text, twin=received.twin.id)
        return received

    def _seal(
        self, data: bytes, twin: Twin, deadline: Deadline, *, must: bool = False
    ) -> tuple[bytes | None, bytes | None]:
        """Return a payload as plaintext or ciphertext; the other one is ``None``."""
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
            text = f"an envelope of {len(data)} bytes is above the limit of {MAX_ENVELOPE}"
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
            text = f"twin {twin.id} had a public key and has none now: no plaintext is sent"
            raise BusError(NO_PUBLIC_KEY, text, twin=twin.id, retry_safe=True)
