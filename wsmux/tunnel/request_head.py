r"""Parse and encode the request and the answer at the start of a tunnel's streams.

Both are heads of HTTP/1.1 (RFC 9112), without a body::

    CONNECT redis.internal:6379 HTTP/1.1\r\n\r\n
    HTTP/1.1 200 OK\r\n\r\n

The text of the answer is a sentence for people, except that the answer to ``LISTEN`` contains the
address at which the server listens, and the answer to ``EXEC`` a token. Whatever follows a head is
carried. Parsing is strict: superfluous bytes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from .errors import TunnelError

__all__ = [
    "END",
    "MAX_HEAD",
    "Answer",
    "Request",
    "encode_answer",
    "encode_request",
    "parse_answer",
    "parse_request",
]

# Maximum size of a head. As websockets' limit for a line; the arguments of a command must fit as
# well.
MAX_HEAD = 8192

# Maximum length of the text in an answer; longer ones are truncated.
MAX_WORDS = 500

END = b"\r\n\r\n"

_REQUEST = re.compile(r"([A-Z]+) ([!-~]+) HTTP/1\.1")
_ANSWER = re.compile(r"HTTP/1\.1 ([1-5][0-9][0-9]) ([ -~]*)")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([!-~]([ -~]*[!-~])?)?")
_ARGUMENT = re.compile(r"([A-Za-z0-9_.~-]|%[0-9A-F]{2})*")


class Request(NamedTuple):
    """A request; ``arguments`` are those of a command, or the key that a listener returns."""

    method: str
    target: str
    arguments: tuple[str, ...] = ()


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    words: str


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request.

    Raises:
        TunnelError: it is longer than ``MAX_HEAD``, or its target cannot be sent in a line.
    """
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    if not _REQUEST.fullmatch(lines[0]):
        text = f"{request.target!r} cannot be asked for: visible ASCII characters are wanted"
        raise TunnelError(400, text)
    lines += [f"Arg: {_quoted(argument)}" for argument in request.arguments]
    return _encode(lines)


def encode_answer(answer: Answer) -> bytes:
    """Return the bytes of an answer; characters not allowed in its text become ``?``."""
    words = re.sub(r"[^ -~]", "?", answer.words[:MAX_WORDS])
    return _encode([f"HTTP/1.1 {answer.status} {words}"])


def _encode(lines: Iterable[str]) -> bytes:
    head = "\r\n".join(lines).encode("ascii")
    if len(head) > MAX_HEAD:
        raise TunnelError(400, f"the request is longer than {MAX_HEAD} bytes")
    return head + END


def parse_request(head: bytes) -> Request:
    """Parse a head as a request, ignoring fields other than ``Arg``.

    Raises:
        TunnelError: it is not a request.
    """
    first, *fields = _lines(head)
    match = _REQUEST.fullmatch(first)
    if match is None:
        raise TunnelError(400, "the first line is not of the form METHOD TARGET HTTP/1.1")
    named = [(name.lower(), value) for name, value in _fields(fields)]
    arguments = tuple(_unquoted(value) for name, value in named if name == "arg")
    return Request(match[1], match[2], arguments)


def parse_answer(head: bytes) -> Answer:
    """Parse a head as an answer, ignoring its fields.

    Raises:
        TunnelError: it is not an answer.
    """
    first, *fields = _lines(head)
    match = _ANSWER.fullmatch(first)
    if match is None:
        raise TunnelError(502, "the answer is not one of a tunnel server")
    _fields(fields)
    return Answer(int(match[1]), match[2])


def _lines(head: bytes) -> list[str]:
    try:
        return head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise TunnelError(400, "a head has bytes that are not ASCII") from None


def _fields(lines: Iterable[str]) -> list[tuple[str, str]]:
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise TunnelError(400, "a line of the head is not of the form NAME: VALUE")
        fields.append((match[1], match[2] or ""))
    return fields


def _quoted(argument: str) -> str:
    return quote(argument.encode("utf-8", "surrogateescape"), safe="")


def _unquoted(text: str) -> str:
    if not _ARGUMENT.fullmatch(text) or "%00" in text:
        raise TunnelError(400, "an argument is not quoted correctly")
    return unquote(text, errors="surrogateescape")
