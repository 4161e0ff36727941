"""Define the protocol of the data server: names, codes, lines, tokens and receipts.

Two protocols share one URL. Calls use River: the services ``dataset`` and ``topic``. Bulk data uses
streams of a mux connection. A stream begins with one line of JSON, the header, which names the
request. The server's first line is ``{"ok": true, ...}``, or a refusal
``{"ok": false, "code": ..., "message": ...}``, after which the stream ends.

``read``: the header holds ``token``, ``skip_rows``, ``columns`` and ``filters``, or ``topic``,
``partition``, ``start``, ``end``, ``columns``, ``metadata`` (whether to add partition, offset and
timestamp) and perhaps ``home``, as the heads of the topic tell it. The first line tells
``batch_bytes``, the most bytes of a record batch that the server takes. One Arrow IPC stream
follows; if the header has ``empty`` (true), batches without rows say that the server is still
looking for some that match, which earlier clients cannot read. An error while reading ends it with
``FAILURE`` in place of the next message, and a refusal line as above: no Arrow reader takes that
for the end, and one that recognises it gets the reason. If the header has ``stored`` (true), and
the first line has it as well, what follows is as ``server.stored_stream`` has it, where row groups
of Parquet come as they are stored; earlier servers and clients know nothing of that.
``write``: the header holds ``txn``, ``partition`` and ``attempt``. After the first line the client
sends one Arrow IPC stream and closes its write side; the server answers with a second line, the
receipt.
``ingest``: the header holds ``dataset``. Messages follow the first line both ways: a kind (one
byte), the number of a client (four bytes), a length (four bytes), low bytes first, and a body. One
stream serves all clients of a process, which gives each a number of its own.

=========  =====================================================================================
OPEN       JSON: ``client``, ``session`` (random, for each object that writes) and perhaps
           ``create``, a schema in base64 for a dataset that is not there
OPENED     the answer, JSON: ``offset``, how many rows of the client are in the dataset,
           ``session``, which wrote the last of them, ``partition_by``, ``batch_bytes``, and
           ``schema`` in base64 unless it is the one that this stream was told last
ROWS       an Arrow IPC message of rows from that offset on, a record batch of the schema
DURABLE    8 bytes, low bytes first: how many rows of the client are durable by now
REFUSED    a refusal line; nothing more is heard from that number, nor told to it
LEAVE      the client sends nothing more
=========  =====================================================================================

A client whose name begins with ``~`` is remembered for a time only.

This module needs no pyarrow, clock or files.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Self

from ..rpc import RiverError

__all__ = [
    "DATASET_SERVICE",
    "FAILED",
    "FAILURE",
    "INGEST",
    "INGEST_HEAD",
    "MAX_CLIENT",
    "MAX_HEADER",
    "MAX_WHOLE",
    "READ",
    "TEMPORARY",
    "TOPIC_SERVICE",
    "WRITE",
    "Code",
    "Ingest",
    "RangeToken",
    "Receipt",
    "Request",
    "TxnId",
    "check_name",
    "encode_line",
    "ingest_message",
    "is_busy",
    "is_name",
    "parse_line",
    "raise_refusal",
    "read_line",
    "receipts_of",
    "refusal",
]

DATASET_SERVICE, TOPIC_SERVICE = "dataset", "topic"
READ, WRITE, INGEST = "read", "write", "ingest"

# What the random names of ingest clients begin with, and characters of a name.
TEMPORARY = "~"
MAX_CLIENT = 200

# What a message of ingest begins with: its kind, the number of a client, the length of its body.
INGEST_HEAD = struct.Struct("<BII")

# Bytes of a header including its newline; enough for thousands of columns.
MAX_HEADER = 64 * 1024

# Reset code of a stream whose handler failed after the first line.
FAILED = 64

# Sent in place of an Arrow message: a negative length, which no message has.
FAILURE = b"\xff" * 8

# The largest signed 64-bit number, the size of columns and of Spark's counters.
MAX_WHOLE = 2**63 - 1

# A name is that of a directory, so names that could escape from it or be hidden are refused.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TXN = re.compile(r"([dt]):([A-Za-z0-9._-]{1,128}):([0-9a-f]{32}(?:-[0-9]{1,19})?)")
_RANGE = re.compile(r"([A-Za-z0-9._-]{1,128}):([0-9a-f]{8})((?::[0-9]{1,19}){3})")
_FILE = re.compile(r"p[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{16}\.[a-z]{1,16}")


class Code(StrEnum):
    """Name the errors of stores and data servers."""

    BAD_NAME = "BAD_NAME"
    """An invalid name of a dataset or topic."""
    NO_DATASET = "NO_DATASET"
    NO_TOPIC = "NO_TOPIC"
    EXISTS = "EXISTS"
    """It already exists, and differs."""
    BAD_REQUEST = "BAD_REQUEST"
    """A field is missing or has the wrong type."""
    NO_COLUMN = "NO_COLUMN"
    BAD_FILTER = "BAD_FILTER"
    REPLACE_WHERE_MISMATCH = "REPLACE_WHERE_MISMATCH"
    """A row that does not match the condition of the rows it is to replace."""
    WRONG_SCHEMA = "WRONG_SCHEMA"
    """A schema that cannot be stored, or does not match the stored one."""
    NO_TXN = "NO_TXN"
    """A transaction that was not begun, was aborted or committed, or has expired."""
    WRONG_RECEIPT = "WRONG_RECEIPT"
    BAD_TOKEN = "BAD_TOKEN"
    VERSION_GONE = "VERSION_GONE"
    """A range of a version that is no longer kept."""
    OFFSETS_GONE = "OFFSETS_GONE"
    """Offsets below the earliest one kept."""
    BAD_OFFSETS = "BAD_OFFSETS"
    """Offsets that never existed, above the latest, or in the wrong order."""
    TAKEN_OVER = "TAKEN_OVER"
    """Another ingest client uses the same id."""
    BAD_HEADER = "BAD_HEADER"
    NO_STREAM = "NO_STREAM"
    BAD_ARROW = "BAD_ARROW"
    """Bytes that are not a complete Arrow IPC stream, or values that violate its schema."""
    TOO_LARGE = "TOO_LARGE"
    CORRUPT = "CORRUPT"
    """A file of the store is damaged, missing or foreign; the message names it."""
    BUSY = "BUSY"
    """Other changes to the dataset or topic took too long; nothing was done, retry."""
    STORE_FAILED = "STORE_FAILED"
    """The disk is full, or the system refused in another way."""


class Ingest(IntEnum):
    """Name the kinds of messages of ``ingest``."""

    OPEN, OPENED, ROWS, DURABLE, REFUSED, LEAVE = range(1, 7)


def ingest_message(kind: Ingest, number: int, body: Any = b"") -> bytes:
    """Return a message of ``ingest``."""
    return b"".join((INGEST_HEAD.pack(kind, number, len(body)), body))


def refusal(code: Code, message: str) -> RiverError:
    """Return the error for a code, for streams and calls."""
    return RiverError(code.value, message)


def is_busy(error: Exception) -> bool:
    """Return whether a store has done nothing, as others changed the same, and may be asked again.

    Procedures that are not the data server's may mean anything by BUSY.
    """
    return isinstance(error, RiverError) and error.code == Code.BUSY


def is_name(name: str) -> bool:
    """Return whether a name is valid for a dataset or topic."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def check_name(name: object, what: str) -> str:
    """Return a valid name of a dataset or topic.

    Raises:
        RiverError: BAD_NAME; it is invalid.
    """
    if isinstance(name, str) and is_name(name):
        return name
    shown = repr(name) if len(repr(name)) <= 160 else f"{repr(name)[:150]}..."
    text = f"the name of a {what} must be 1 to 128 of A-Z a-z 0-9 . _ -, but not . or .., not"
    raise refusal(Code.BAD_NAME, f"{text} {shown}")


# Lines


def encode_line(values: Mapping[str, Any]) -> bytes:
    """Encode a line: a header, a server's first line or a receipt."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def read_line(read_into: Callable[[bytearray], int]) -> bytes:
    """Return the next line of a stream, or what came of it, without reading beyond it.

    Args:
        read_into: fills a buffer, and returns how many bytes there were.
    """
    line, one = bytearray(), bytearray(1)
    while len(line) < MAX_HEADER and not line.endswith(b"\n") and read_into(one):
        line += one
    return bytes(line)


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse a line.

    Raises:
        RiverError: BAD_HEADER; it is incomplete, or not a JSON object.
    """
    if not line.endswith(b"\n"):
        text = "the stream ended" if len(line) < MAX_HEADER else f"{MAX_HEADER} bytes passed"
        raise refusal(Code.BAD_HEADER, f"{text} before the newline that ends the first line")
    try:
        values = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal(Code.BAD_HEADER, f"the first line is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise refusal(Code.BAD_HEADER, "the first line is not a JSON object")
    return values


def raise_refusal(line: bytes) -> None:
    """Raise the error of a line that is a refusal.

    Raises:
        RiverError: with the server's code, or BAD_HEADER.
    """
    values = parse_line(line)
    if values.get("ok") is not True:
        code, message = values.get("code"), values.get("message")
        raise RiverError(str(code or Code.BAD_HEADER.value), str(message or "no reason given"))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Request:
    """Read the typed fields of a header, or of the init of a call.

    Every method raises ``RiverError`` with BAD_REQUEST for a missing or invalid field.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        """Return a string of valid Unicode."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._wrong(name, "valid Unicode") from None
        return value

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number."""
        value = self._values.get(name, default)
        value = default if value is None else value
        if type(value) is bool or not isinstance(value, int) or not least <= value <= MAX_WHOLE:
            raise self._wrong(name, f"a whole number from {least} up")
        return int(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, false if it is missing."""
        value = self._values.get(name)
        if value is not None and type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value is True

    def raw(self, name: str) -> bytes:
        """Return bytes."""
        value = self._values.get(name)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise self._wrong(name, "bytes")
        return bytes(value)

    def texts(self, name: str) -> list[str] | None:
        """Return a list of strings, or ``None`` if there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(name, "a list of strings")
        return value

    def wholes(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of whole numbers")
        return [Request({name: each}).whole(name) for each in value]

    def given(self, name: str) -> Any:
        """Return the value, of any type, or ``None``."""
        return self._values.get(name)

    def _wrong(self, name: str, wanted: str) -> RiverError:
        if self._values.get(name) is None:
            return refusal(Code.BAD_REQUEST, f"{name} is missing; it must be {wanted}")
        shown = repr(self._values[name])
        shown = shown if len(shown) <= 80 else f"{shown[:70]}..."
        return refusal(Code.BAD_REQUEST, f"{name} must be {wanted}, not {shown}")


# Transactions, tokens and receipts


class TxnId(NamedTuple):
    """Identify a transaction and its dataset or topic, so that calls need a single string."""

    kind: str
    """``d`` for a dataset, ``t`` for a topic."""
    name: str
    key: str
    """Random for a dataset, derived from query and batch for a topic."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}:{self.key}"

    @classmethod
    def parse(cls, text: str, kind: str) -> Self:
        """Parse the text of a transaction id.

        Raises:
            RiverError: NO_TXN; it is not an id of that kind.
        """
        found = _TXN.fullmatch(text)
        if found is None or found[1] != kind or not is_name(found[2]):
            raise refusal(Code.NO_TXN, f"there is no transaction {text[:200]!r}")
        return cls(*found.groups())


class RangeToken(NamedTuple):
    """Identify the rows of one version of a dataset from ``start`` up to ``end``, in its order."""

    name: str
    home: str
    """Distinguishes a dataset from a later one with the same name."""
    version: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.name}:{self.home}:{self.version}:{self.start}:{self.end}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a token.

        Raises:
            RiverError: BAD_TOKEN; it is not a token.
        """
        found = _RANGE.fullmatch(text)
        if found is not None and is_name(found[1]):
            version, start, end = (int(number) for number in found[3][1:].split(":"))
            if start <= end:
                return cls(found[1], found[2], version, start, end)
        raise refusal(Code.BAD_TOKEN, f"{text[:300]!r} is not a token of describe()")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Describe what one attempt at a partition staged; the commit names the receipts that count.

    ``bytes`` and ``crc`` (CRC-32) are those of the Arrow IPC stream as received.
    """

    partition: int
    attempt: int
    rows: int
    bytes: int
    crc: int
    file: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the receipt in a JSON object from a client.

        Raises:
            RiverError: WRONG_RECEIPT; it is malformed.
        """
        if not isinstance(value, Mapping):
            raise refusal(Code.WRONG_RECEIPT, f"expected a receipt object, got {str(value)[:80]!r}")
        request = Request(value)
        try:
            numbers = {field.name: request.whole(field.name) for field in fields(cls)[:-1]}
            file = request.text("file")
        except RiverError as error:
            raise refusal(Code.WRONG_RECEIPT, f"in a receipt, {error.message}") from error
        if not _FILE.fullmatch(file):
            raise refusal(Code.WRONG_RECEIPT, f"there is no staged part {file[:80]!r}")
        return cls(**numbers, file=file)

    def check(self, staged: Self | None) -> None:
        """Compare it with the staged part.

        Raises:
            RiverError: WRONG_RECEIPT; they differ, or nothing was staged.
        """
        place = f"partition {self.partition}, attempt {self.attempt}"
        if staged is None:
            text = f"{place}: this transaction has staged no {self.file}"
            raise refusal(Code.WRONG_RECEIPT, text)
        for field in fields(self):
            ours, theirs = getattr(staged, field.name), getattr(self, field.name)
            if ours != theirs:
                text = f"{place}: {field.name} is {ours} here, {theirs} in the receipt"
                raise refusal(Code.WRONG_RECEIPT, text)


def receipts_of(values: object) -> list[Receipt]:
    """Return the receipts of a commit, sorted by partition.

    Raises:
        RiverError: WRONG_RECEIPT; one is malformed, or a partition has two.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise refusal(Code.WRONG_RECEIPT, "the receipts of a commit must be a list")
    receipts = sorted((Receipt.of(value) for value in values), key=lambda each: each.partition)
    for one, other in zip(receipts, receipts[1:], strict=False):
        if one.partition == other.partition:
            text = f"partition {one.partition} has two receipts, of attempts {one.attempt} and"
            raise refusal(Code.WRONG_RECEIPT, f"{text} {other.attempt}; name one")
    return receipts
