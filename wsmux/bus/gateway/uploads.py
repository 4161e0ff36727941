"""Upload files between gateways: the plugin ``file``, which is off unless it gets a directory.

A program pushes ``file.upload`` with ``{"path": ..., "cmd": ...}`` to its gateway, for one twin.
The answer holds the id of the upload, and comes when the file was sent and, if the other gateway is
of this package, is complete there. That gateway has then pushed a request for ``cmd``, if given, to
its own list, with ``{"id": ..., "path": ..., "size": ...}``. The reference gateway never does.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from ..errors import FAILED, BusError
from ..session.identity_session import IdentitySession
from ..session.relay_pool import RelayPool
from ..wire.address import Address
from ..wire.envelope import JSON_SCHEMA
from ..wire.messages import Envelope
from ..wire.verification import Received
from .backlog import Waiting
from .json_messages import JsonError, OutgoingRequest, incoming_request, incoming_response
from .queue_names import command_queue
from .redis_store import RedisStore, Tracked
from .upload_receiver import NEGOTIATE, Finished, UploadReceiver
from .upload_sender import SendJob, open_file

__all__ = ["MODULE", "Uploads"]

# The first part of the plugin's commands, which also marks its backlog records.
MODULE = "file"
UPLOAD = "file.upload"

# Files being sent at once.
MAX_JOBS = 4

# Seconds to write an answer to Redis.
GRACE = 60.0

_log = logger("wsmux.bus")


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
        self._receiver = None if directory is None else UploadReceiver(directory)
        self._lock = threading.Lock()
        self._jobs: dict[str, SendJob] = {}
        self._threads: list[threading.Thread] = []

    def is_ours(self, command: str) -> bool:
        """Return whether a command belongs to the plugin."""
        return command.partition(".")[0] == MODULE

    def begin(
        self, request: OutgoingRequest, life: int, deadline: Deadline
    ) -> tuple[list[Tracked], list[JsonError]]:
        """Start the upload that a program requests; return the envelope to send, or the error."""
        try:
            return [self._begin(request, life, deadline)], []
        except BusError as error:
            return [], [JsonError(error.code, error.message)]

    def answered(self, waiting: Waiting, received: Received, error: JsonError | None) -> None:
        """Continue an upload after an answer from the other side."""
        with self._lock:
            job = self._jobs.get(waiting.uid)
            begun = job is not None and job.started
            if job is not None:
                job.started = True
        if job is None:
            self.lost(waiting)
            return
        job.tell(received.payload, error)
        if not begun and error is not None:
            self._finish(waiting, error)
        elif not begun:
            self._start(lambda: self._run(waiting, job))

    def lost(self, waiting: Waiting) -> None:
        """Answer a program whose upload was lost with the previous gateway."""
        self._finish(waiting, JsonError(FAILED, "the gateway was restarted: upload again"))

    def take(self, envelope: Envelope, received: Received) -> bytes:
        """Handle a request of another twin, and return the answer.

        Raises:
            BusError: code 500; the request failed, or uploads are off.
        """
        if self._receiver is None:
            text = f"file uploads are disabled at twin {self._endpoint.address}"
            raise BusError(FAILED, text, retry_safe=True)
        assert received.source is not None
        answer, finished = self._receiver.take(envelope, received.source, received.payload)
        if finished is not None:
            self._follow_up(envelope, received.source, finished)
        return answer

    def close(self, deadline: Deadline) -> None:
        """End every upload, waiting for their threads until the deadline."""
        with self._lock:
            jobs, threads = list(self._jobs.values()), list(self._threads)
        for job in jobs:
            job.stop()
        for thread in threads:
            thread.join(deadline.remaining())
        if self._receiver is not None:
            self._receiver.close()

    def _begin(self, request: OutgoingRequest, life: int, deadline: Deadline) -> Tracked:
        if self._receiver is None:
            raise BusError(FAILED, "file uploads are disabled: start the gateway with them enabled")
        if request.command != UPLOAD:
            raise BusError(FAILED, f"uploads have no command {request.command[:80]!r}")
        if len(request.destinations) != 1:
            raise BusError(FAILED, "a file goes to one twin: name one destination")
        path, command = _wish(request.data)
        with open_file(path) as file:
            size = file.seek(0, 2)
        endpoint = self._endpoint
        twin = endpoint.twin(request.destinations[0], deadline)
        body = json.dumps({"size": size, "cmd": command}).encode()
        uid = str(uuid.uuid4())
        signed, _ = endpoint.request(uid, twin, Address(twin.id), NEGOTIATE, body, life, deadline)
        job = SendJob(endpoint, self._relay_pool, uid, twin, Path(path), life)
        with self._lock:
            for each in [each for each, old in self._jobs.items() if old.unanswered()]:
                del self._jobs[each]
            if len(self._jobs) >= MAX_JOBS:
                raise BusError(FAILED, f"{MAX_JOBS} uploads are under way: try again later")
            self._jobs[uid] = job
        waiting = Waiting(uid, request.reference, request.reply_to, MODULE, life)
        return Tracked(waiting, signed)

    def _run(self, waiting: Waiting, job: SendJob) -> None:
        try:
            job.run()
        except BusError as error:
            self._finish(waiting, JsonError(error.code, error.message))
        except Exception as error:
            _log.exception("the upload %s failed", waiting.uid)
            self._finish(waiting, JsonError(FAILED, f"the upload failed: {error}"))
        else:
            self._finish(waiting, None)

    def _finish(self, waiting: Waiting, error: JsonError | None) -> None:
        data = b"" if error else json.dumps(waiting.uid).encode()
        message = incoming_response(waiting.reference, data, "", JSON_SCHEMA, 0, error)
        try:
            self._store.answer(waiting, message, Deadline(GRACE))
        except BusError as failure:
            _log.warning("the end of the upload %s could not be reported: %s", waiting.uid, failure)
        # Removed last: an answer for an upload that is not in the table means that it was lost.
        with self._lock:
            self._jobs.pop(waiting.uid, None)

    def _follow_up(self, envelope: Envelope, source: Address, finished: Finished) -> None:
        _log.info("twin %s uploaded %s, %d bytes", source.shown(), finished.path, finished.size)
        if finished.command is None:
            return
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
        self._store.push(command_queue(finished.command), message, Deadline(GRACE))

    def _start(self, run: Callable[[], None]) -> None:
        thread = daemon_thread(target=run, name="wsmux-bus-upload")
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()


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
