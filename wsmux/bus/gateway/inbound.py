"""Pass messages from relays to programs: requests to services, answers to waiting callers.

``IdentitySession.accept`` checks each message first. A request then goes to the list of its
command. An answer goes to the list that its request named, if it comes from the twin that was
asked.
"""

from __future__ import annotations

from importlib import import_module

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import E2E_FAILURE, FAILED, BusError, Replayed, remote_error
from ..services import encode
from ..session.asked_requests import AskedRequests
from ..session.identity_session import ERROR_LIFE, IdentitySession, clock, deadline_of
from ..session.relay_pool import RelayPool
from ..wire import envelope as envelopes
from ..wire.address import address_of
from ..wire.envelope import MAX_LIFE, Kind, kind_of, time_left
from ..wire.messages import Envelope
from ..wire.verification import Received
from .expiry import Expiry
from .json_messages import RELAY, JsonError, incoming_request, incoming_response
from .outbound import Half
from .queue_names import command_queue
from .redis_store import RedisStore, Tracked, asked_key
from .unserved import Unserved
from .uploads import Uploads

__all__ = ["Inbound"]

# The plugin whose commands the gateway itself answers.
OWN = "rmb"
VERSION = "rmb.version"

SEEN = "this request was passed to its service before"

_log = logger("wsmux.bus")


class Inbound(Half):
    """Handle envelopes from relays, each in a thread of a pool.

    Attributes:
        unserved: answers requests that no service takes; its ``run`` is for a thread.
    """

    def __init__(
        self,
        endpoint: IdentitySession,
        relay_pool: RelayPool,
        store: RedisStore,
        asked: AskedRequests,
        uploads: Uploads,
        expiry: Expiry,
    ) -> None:
        super().__init__(endpoint, relay_pool, store, asked, uploads, expiry)
        self.unserved: Unserved = Unserved(store, self._tell)

    def take(self, envelope: Envelope) -> None:
        """Check an envelope and pass it on; retries while Redis is down, until it expires."""
        deadline = deadline_of(envelope)
        endpoint = self._endpoint
        try:
            received = endpoint.accept(envelope, lambda number: endpoint.twin(number, deadline))
            if received.kind is Kind.REQUEST:
                self._request(envelope, received, deadline)
            elif received.kind in (Kind.RESPONSE, Kind.ERROR):
                self._answer(envelope, received, deadline)
        except Replayed as error:
            self._again(envelope, error)
        except BusError as error:
            _log.warning("a message from twin %d is dropped: %s", envelope.source.twin, error)
            self._tell(envelope, error)

    # Requests

    def _request(self, envelope: Envelope, received: Received, deadline: Deadline) -> None:
        assert received.source is not None  # relays send no requests
        source, command = str(received.source), envelope.request.command
        self._asked.note(envelope.uid, source, encrypted=received.encrypted)
        if self._uploads.is_ours(command):
            answer = self._uploads.take(envelope, received)
            if answer is not None:
                self._respond(envelope, received, answer, deadline)
        elif command.partition(".")[0] == OWN:
            if command != VERSION:
                raise BusError(FAILED, f"the gateway has no command {command[:80]!r}")
            self._respond(envelope, received, encode(_version()), deadline)
        else:
            try:
                queue = command_queue(command)
            except ValueError as error:
                raise BusError(FAILED, str(error)) from error
            message = incoming_request(
                envelope.uid,
                received.source,
                command,
                envelope.expiration,
                received.payload,
                envelope.tags if envelope.HasField("tags") else None,
                envelope.schema if envelope.HasField("schema") else None,
                envelope.timestamp,
            )
            # The sender chose how long it lives; it is accepted for no longer than this.
            life = min(time_left(envelope, clock()), MAX_LIFE)
            asked = asked_key(envelope.uid, source)
            known = self._store.push_once(asked, life, queue, message, deadline)
            if known is not None:  # by an earlier gateway, which remembered more than this one
                self._relay_pool.answer_again(known or None, Replayed(SEEN, received.source.twin))
            else:
                self.unserved.watch(queue, message, envelope, Deadline(max(0, life)))

    def _respond(
        self, envelope: Envelope, received: Received, data: bytes, deadline: Deadline
    ) -> None:
        """Answer a request from the gateway itself, without a program."""
        assert received.twin is not None
        signed = self._endpoint.response(
            envelope, received.twin, data, deadline, encrypted=received.encrypted
        )
        self._send(envelope, signed, deadline)

    def _again(self, envelope: Envelope, error: Replayed) -> None:
        """Resend an answer: the first copy may have been lost with its connection."""
        answer = None
        if kind_of(envelope) is Kind.REQUEST:
            answer = self._asked.answer(envelope.uid, str(address_of(envelope.source)))
        self._relay_pool.answer_again(answer, error)

    def _tell(self, envelope: Envelope, error: BusError) -> None:
        """Answer a request with the error that ended it."""
        if kind_of(envelope) is not Kind.REQUEST or not envelope.source.twin:
            return
        signed = self._endpoint.error(envelope, error.code, error.message)
        expired = time_left(envelope, clock()) <= 0
        self._send(envelope, signed, Deadline(ERROR_LIFE) if expired else deadline_of(envelope))

    def _send(self, envelope: Envelope, signed: bytes, deadline: Deadline) -> None:
        self._asked.answered(envelope.uid, str(address_of(envelope.source)), signed)
        self._relay_pool.answer(signed, deadline, envelope.source.twin)

    # Answers

    def _answer(self, envelope: Envelope, received: Received, deadline: Deadline) -> None:
        tracked = self._store.tracked(envelope.uid, deadline)
        if tracked is None:
            _log.info("an answer from twin %s is dropped: no call waits for it", _name(received))
            return
        error = self._error(envelope, received, tracked)
        waiting = tracked.waiting
        if received.source is None and self._expiry.was_resent(waiting.uid):
            # It may be about a copy, while another one has been delivered.
            _log.info("the relay's error %r ends no request that was sent again", error)
            return
        if waiting.module is not None:
            self._uploads.answered(tracked, received, error)
            return
        message = incoming_response(
            waiting.reference,
            b"" if error else received.payload,
            RELAY if received.source is None else str(received.source),
            envelope.schema if envelope.HasField("schema") else None,
            envelope.timestamp,
            error,
        )
        if not self._store.answer(waiting, message, deadline):
            _log.info("an answer from twin %s is dropped: another one was first", _name(received))
        self._expiry.remove(waiting.uid)

    def _error(self, envelope: Envelope, received: Received, tracked: Tracked) -> JsonError | None:
        """Return the error that an answer carries, or what is wrong with it; else ``None``.

        Raises:
            BusError: the answer comes from a twin that was not asked.
        """
        sent = envelopes.parse(tracked.signed) if tracked.signed else None
        source = received.source
        if sent is not None and source is not None and sent.destination.twin != source.twin:
            text = f"an answer from twin {source}, which was not asked"
            raise BusError(FAILED, text, twin=source.twin)
        if received.kind is Kind.ERROR:
            twin = None if source is None else source.twin
            failed = remote_error(envelope.error.code, envelope.error.message, twin)
            return JsonError(failed.code, failed.message)
        plain = source is not None and received.payload and not received.encrypted
        if sent is not None and sent.HasField("cipher") and plain:
            return JsonError(E2E_FAILURE, "an encrypted request was answered in plaintext")
        return None


def _name(received: Received) -> str:
    return "0" if received.source is None else received.source.shown()


def _version() -> str:
    """Return the package's version; only the top layer may import the package by a statement."""
    version: str = import_module("wsmux").__version__
    return version
