"""Exchange a request and its answer at the start of a stream, under one deadline."""

from __future__ import annotations

from contextlib import suppress

from ..exceptions import StreamRefused, StreamWriteClosed
from ..mux.stream import Stream
from ..runtime.deadline import Deadline
from .errors import TunnelError
from .request_head import (
    END,
    MAX_HEAD,
    Answer,
    Request,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
)

__all__ = ["HEAD_TIMEOUT", "answer", "ask", "receive_request"]

# Seconds for a complete head, however many reads it takes; the same as
# ``Config.handshake_timeout``.
HEAD_TIMEOUT = 10.0


def ask(stream: Stream, request: Request, deadline: Deadline) -> str:
    """Send a request and wait for its answer; return the text of the answer.

    Afterwards the stream is the tunnel, without a timeout.

    Raises:
        TunnelError: it was refused, or not answered in time.
        WsmuxError: the stream ended.
    """
    try:
        stream.timeout = deadline.remaining()
        with suppress(StreamWriteClosed):  # the peer has already answered, with the reason
            stream.write(encode_request(request))
        got = parse_answer(_read_head(stream, deadline))
    except TimeoutError as error:
        raise TunnelError(504, f"no answer to {request.method} {request.target}") from error
    except StreamRefused as error:
        raise TunnelError(503, f"the peer refused the stream: {error}") from error
    if got.status != 200:
        raise TunnelError(got.status, got.words)
    stream.timeout = None
    return got.words


def receive_request(stream: Stream, deadline: Deadline) -> Request:
    """Wait for the request at the start of a stream, and return it.

    Raises:
        TunnelError: none arrived in time, or it is invalid.
        WsmuxError: the stream ended.
    """
    try:
        return parse_request(_read_head(stream, deadline))
    except TimeoutError as error:
        raise TunnelError(504, "no request arrived in time") from error


def answer(stream: Stream, status: int, words: str) -> None:
    """Answer a request; after 200 the stream is the tunnel, without a timeout.

    Raises:
        WsmuxError: the stream ended.
        WriteTimeout: the peer does not read the answer.
    """
    stream.timeout = HEAD_TIMEOUT
    stream.write(encode_answer(Answer(status, words)))
    stream.timeout = None


def _read_head(stream: Stream, deadline: Deadline) -> bytes:
    """Read exactly up to the end of a head: whatever follows belongs to the tunnel."""
    head = bytearray()
    while not head.endswith(END):
        if len(head) >= MAX_HEAD + len(END):
            raise TunnelError(400, f"a head is longer than {MAX_HEAD} bytes")
        stream.timeout = deadline.remaining()
        byte = stream.read(1)
        if not byte:
            raise TunnelError(400, "the stream ended within a head")
        head += byte
    return bytes(head.removesuffix(END))
