"""Upload files between gateways: the plugin ``file``, which is off unless it gets a directory.

A program pushes ``file.upload`` with ``{"path": ..., "cmd": ...}`` to its gateway, for one twin.
The answer holds the id of the upload, and comes when the file was sent and, if the other gateway is
of this package, is complete there. That gateway has then pushed a request for ``cmd``, if given, to
its own list, with ``{"id": ..., "path": ..., "size": ...}``. The reference gateway never does.

Every upload is answered: with its id, with the error that ended it, or with error 102 when its
request expires. Lost connections and relays, and gateways that are killed at either side, do not
end it; see ``upload_progress`` for what a sender does then. What a program asked is kept in Redis,
so that the next gateway goes on with it. What was received is recorded there together with the
request for ``cmd``: so a file arrives, and its command is called, once.
"""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

from ...exceptions import NoThreadError
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread
from ..errors import FAILED, BusError, CallTimeout
from ..session.identity_session import IdentitySession, clock
from ..session.relay_pool import RelayPool
from ..wire import envelope as envelopes
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA, MAX_LIFE, time_left
from ..wire.messages import Envelope
from ..wire.verification import Received
from .backlog import Waiting
from .json_messages import JsonError, OutgoingRequest, incoming_request, incoming_response
from .queue_names import command_queue
from .redis_store import RedisStore, Tracked, asked_key
from .upload_receiver import NEGOTIATE, Finished, UploadReceiver
from .upload_sender import SendJob, negotiation, open_file

__all__ = ["MODULE", "Uploads"]

# The first part of the plugin's commands, which also marks its backlog records.
MODULE = "file"
UPLOAD = "file.upload"

# Files being sent at once.
MAX_JOBS = 4

# Seconds to record in Redis that a file is complete, after which its sender has to ask again.
GRACE = 60.0

_log = logger("wsmux.bus")


class _Finished:
    """Record in Redis which uploads of other twins are complete."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def is_finished(self, envelope: Envelope, source: Address) -> bool:
        """Return whether the upload of this request was recorded."""
        asked = asked_key(envelope.uid, str(source))
        return self._store.is_recorded(asked, Deadline(GRACE))

    def finish(self, envelope: Envelope, source: Address, finished: Finished) -> None:
        """Record an upload, and push the request for its command in the same step."""
        asked, deadline = asked_key(envelope.uid, str(source)), Deadline(GRACE)
        life = min(time_left(envelope, clock()), MAX_LIFE)
        if finished.command is None:
            self._store.record(asked, life, deadline)
        else:
            told = {"id": envelope.uid, "path": str(finished.path), "size": finished.size}
            message = incoming_request(
                envelope.uid,
                source,
                finished.command,
                envelope.expiration,
                json.dumps(told).encode(),
                None,
                JSON_SCHEMA,
                envelope.timestamp,
            )
            self._store.push_once(asked, life, command_queue(finished.command), message, deadline)
        _log.info("twin %s uploaded %s, %d bytes", source.shown(), finished.path, finished.size)


class Uploads:
    """Run the plugin; ``directory`` is for files of other twins, ``None`` disables it."""

    def __init__(
        self,
        endpoint: IdentitySession,
        relay_pool: RelayPool,
        store: RedisStore,
        directory: Path | None,
    ) -> None:
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._store = store
        self._receiver: UploadReceiver | None = None
        if directory is not None:
            secret = endpoint.identity.derive(b"names of uploads")
            self._receiver = UploadReceiver(directory, secret, _Finished(store))
        self._lock = threading.Lock()
        self._jobs: dict[str, SendJob] = {}
        self._threads: list[threading.Thread] = []

    def is_ours(self, command: str) -> bool:
        """Return whether a command belongs to the plugin."""
        return command.partition(".")[0] == MODULE

    def prepare(
        self, request: OutgoingRequest, life: int, deadline: Deadline
    ) -> tuple[list[Tracked], list[JsonError]]:
        """Check the upload that a program requests; return what to ``start``, or the error."""
        try:
            return [self._prepare(request, life, deadline)], []
        except BusError as error:
            return [], [JsonError(error.code, error.message)]

    def start(self, tracked: Tracked, *, resumed: bool = False) -> None:
        """Start a thread for an upload, which answers its program in the end.

        Args:
            tracked: what was kept of it.
            resumed: whether an earlier gateway may have sent some of it.
        """
        waiting = tracked.waiting
        try:
            job = self._job(tracked, resumed=resumed)
            with self._lock:
                if len(self._jobs) >= MAX_JOBS:
                    raise BusError(FAILED, f"{MAX_JOBS} uploads are under way: try again later")
                self._jobs[waiting.uid] = job
                self._threads = [each for each in self._threads if each.is_alive()]
                thread = daemon_thread(
                    target=self._run, args=(waiting, job), name="wsmux-bus-upload"
                )
                start_thread(thread)
                self._threads.append(thread)
        except BusError as error:
            self._finish(waiting, error)
        except NoThreadError as error:
            self._finish(waiting, BusError(FAILED, str(error)))

    def answered(self, tracked: Tracked, received: Received, error: JsonError | None) -> None:
        """Continue an upload after an answer from the other side, or from a relay."""
        with self._lock:
            job = self._jobs.get(tracked.waiting.uid)
        if job is not None:
            job.tell(received.payload, error, of_relay=received.source is None)
        elif tracked.signed:
            _log.info("an answer to an upload that is not under way yet is dropped")
        else:
            text = "the upload was begun by another gateway: upload again"
            self._finish(tracked.waiting, BusError(FAILED, text))

    def connection_lost(self) -> None:
        """Record that a connection to a relay was lost; does not block."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.connection_lost()

    def take(self, envelope: Envelope, received: Received) -> bytes | None:
        """Handle a request of another twin, and return the answer; ``None`` is to give none.

        Raises:
            BusError: code 500; the request failed, or uploads are off.
        """
        if self._receiver is None:
            text = f"file uploads are disabled at twin {self._endpoint.address}"
            raise BusError(FAILED, text, retry_safe=True)
        assert received.source is not None
        return self._receiver.take(envelope, received.source, received.payload)

    def discard_ended(self) -> None:
        """Discard what other twins began to upload and did not complete in time."""
        if self._receiver is not None:
            self._receiver.discard_ended()

    def stop(self) -> None:
        """Let the threads of uploads end; the next gateway goes on with them."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()

    def close(self, deadline: Deadline) -> None:
        """Discard what is incomplete, and wait for the threads of uploads until the deadline."""
        self.stop()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining())
        if self._receiver is not None:
            self._receiver.close()

    def _check_enabled(self) -> None:
        if self._receiver is None:
            raise BusError(FAILED, "file uploads are disabled: start the gateway with them enabled")

    def _prepare(self, request: OutgoingRequest, life: int, deadline: Deadline) -> Tracked:
        self._check_enabled()
        if request.command != UPLOAD:
            raise BusError(FAILED, f"uploads have no command {request.command[:80]!r}")
        if len(request.destinations) != 1:
            raise BusError(FAILED, "a file goes to one twin: name one destination")
        path, command = _wish(request.data)
        endpoint = self._endpoint
        twin = endpoint.twin(request.destinations[0], deadline)
        body = negotiation(_size(path), command)
        uid = str(uuid.uuid4())
        # Kept as the request of the upload, which says to whom it goes, and until when.
        signed, _ = endpoint.request(uid, twin, Address(twin.id), NEGOTIATE, body, life, deadline)
        waiting = Waiting(uid, request.reference, request.reply_to, MODULE, life)
        return Tracked(waiting, signed, request.data)

    def _job(self, tracked: Tracked, *, resumed: bool) -> SendJob:
        envelope = envelopes.parse(tracked.signed)
        life, twin = time_left(envelope, clock()), envelope.destination.twin
        if life <= 0:
            raise CallTimeout("the upload expired before it was confirmed", twin)
        self._check_enabled()
        if not tracked.plan:
            raise BusError(FAILED, "the gateway was restarted: upload again")
        path, command = _wish(tracked.plan)
        return SendJob(
            self._endpoint,
            self._relay_pool,
            tracked.waiting.uid,
            twin,
            Path(path),
            _size(path),
            command,
            life,
            resumed=resumed,
        )

    def _run(self, waiting: Waiting, job: SendJob) -> None:
        try:
            if job.run():
                self._finish(waiting, None)
        except BusError as error:
            self._finish(waiting, error)
        except Exception as error:
            _log.exception("the upload %s failed", waiting.uid)
            self._finish(waiting, BusError(FAILED, f"the upload failed: {error}"))

    def _finish(self, waiting: Waiting, error: BusError | None) -> None:
        """Answer the program; while Redis is down, waits for it until the gateway closes."""
        data = b"" if error else json.dumps(waiting.uid).encode()
        failure = None if error is None else JsonError(error.code, error.message)
        message = incoming_response(waiting.reference, data, "", JSON_SCHEMA, 0, failure)
        with self._lock:
            self._jobs.pop(waiting.uid, None)  # first: a program that has its answer may go on
        try:
            self._store.answer(waiting, message, Deadline(None))
        except BusError as refused:
            _log.warning("the end of the upload %s is not reported yet: %s", waiting.uid, refused)


def _size(path: str) -> int:
    with open_file(path) as file:
        return file.seek(0, 2)


def _wish(data: bytes) -> tuple[str, str | None]:
    """Return the path and the command of an upload request."""
    try:
        wish: Any = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise BusError(FAILED, f"'dat' is not JSON: {error}") from error
    if not isinstance(wish, dict) or not isinstance(wish.get("path"), str):
        raise BusError(FAILED, "'dat' must be an object with the 'path' of a file")
    command = wish.get("cmd")
    if command is not None and not isinstance(command, str):
        raise BusError(FAILED, "'cmd' must be the name of a command")
    return wish["path"], command
