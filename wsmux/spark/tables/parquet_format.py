"""Check the pages of a column in a Parquet file, and write a footer for a row group without a file.

pyarrow trusts what it reads: a footer that is not as it should be may end the process, and the
header of a page may state that it has any number of values. So of a row group that a peer has sent,
the footer is written here, by what the peer tells of it; and the headers of its pages are checked,
that they state no more than that.

All is in Thrift's compact protocol, by the names and numbers of parquet.thrift. This module needs
no pyarrow, clock or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["CODECS", "ENCODINGS", "MAGIC", "Chunk", "Page", "Shape", "check_pages", "pages"]

# By their numbers, those that are accepted here.
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1}
ENCODINGS = {"PLAIN": 0, "PLAIN_DICTIONARY": 2, "RLE": 3, "BIT_PACKED": 4, "RLE_DICTIONARY": 8}
_CODED = {ENCODINGS["PLAIN_DICTIONARY"], ENCODINGS["RLE_DICTIONARY"]}

# Types of values, by their numbers.
_PHYSICAL = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)

# Kinds of pages, and where the header of each tells how many values it has, and their encoding.
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
_DETAILS = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_V2: (8, 4)}

# Bytes of the header of most pages, and the most of any, whose statistics are the longest part.
USUAL_HEADER, MAX_HEADER = 256, 32 * 1024

# How deep structures and lists may lie in each other: those of columns in a footer are the deepest.
MAX_DEPTH = 8

# Of Thrift: the types of whole numbers, text, lists and structures, and others by their bytes.
_NUMBERS, _I32, _I64, _BINARY, _LIST, _STRUCT = (4, 5, 6), 5, 6, 8, 9, 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}

# The numbers that fields may have.
_FIELDS = range(1, 2**15)

# What a file begins and ends with.
MAGIC = b"PAR1"

# Of a structure, by their numbers.
Fields = dict[int, Any]


# Pages


class Page(NamedTuple):
    """What the header of a page states."""

    kind: int
    size: int
    """Bytes of the page once it is decompressed."""
    values: int
    encoding: int


def check_pages(data: Any, values: int, size: int, encodings: Sequence[int]) -> None:
    """Check all pages of a column in one row group.

    Args:
        data: a buffer of what the file has of them.
        values, size, encodings: what is told of the column: the number of values, the bytes of the
            pages once they are decompressed, and the numbers of the encodings.

    Raises:
        ValueError: the pages state anything else.
    """
    taken = held = 0
    for place, page in enumerate(pages(data)):
        coded = page.kind == DICTIONARY
        if coded and (place or _CODED.isdisjoint(encodings)):
            raise ValueError("there is a dictionary that the footer does not tell of")
        if not coded and (page.encoding not in encodings or not page.values):
            text = f"a page has {page.values} values in encoding {page.encoding}"
            raise ValueError(f"{text}; the footer tells of others")
        if coded and page.values > page.size:
            raise ValueError(f"a dictionary has {page.values} values in {page.size} bytes")
        held += page.size
        taken += 0 if coded else page.values
        if held > size or taken > values:
            text = f"its pages have {taken} values and {held} bytes or more; the footer tells of"
            raise ValueError(f"{text} {values} and {size}")
    if taken != values:
        raise ValueError(f"its pages have {taken} values; the footer tells of {values}")


def pages(data: Any) -> Iterator[Page]:
    """Yield what the header of each page states.

    Raises:
        ValueError: these bytes are no pages.
    """
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        told, used = _header(view[at : at + MAX_HEADER])
        kind, size, packed = told.get(1), told.get(2), told.get(3)
        if type(kind) is not int or kind not in _DETAILS:
            raise ValueError(f"a page is of kind {kind}")
        place, encoding = _DETAILS[kind]
        details = told.get(place)
        if not isinstance(details, dict):
            raise ValueError(f"the header of a page of kind {kind} has no details")
        numbers: list[Any] = [size, packed, details.get(1), details.get(encoding)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("the header of a page has not all its numbers")
        at += used + numbers[1]
        if at > len(view):
            raise ValueError(f"a page ends {at - len(view)} bytes behind its column")
        yield Page(kind, numbers[0], *numbers[2:])


def _header(view: memoryview) -> tuple[Fields, int]:
    """Return the fields of the header of a page, and how long it is."""
    for size in (USUAL_HEADER, MAX_HEADER):  # since most are short, and all are copied
        try:
            return _structure(bytes(view[:size]), 0)
        except IndexError:
            continue
    text = "the header of a page ends behind its column, or has more than"
    raise ValueError(f"{text} {MAX_HEADER} bytes")


# Footers


class Chunk(NamedTuple):
    """What there is of a column: where, how many bytes, and what they are once decompressed."""

    at: int
    packed: int
    size: int
    codec: int
    encodings: Sequence[int]
    coded: bool
    """Whether it begins with a dictionary."""


class Shape:
    """Know the columns of a file, and write footers for row groups of such columns.

    Args:
        file: a Parquet file with these columns and without rows, as pyarrow writes it.
        physical: the type of the values of each column, by its name in the format.
    """

    def __init__(self, file: bytes, physical: Sequence[str]) -> None:
        length = int.from_bytes(file[-8:-4], "little")
        footer = file[-8 - length : -8]
        self._raw: dict[int, bytes] = {}
        _structure(footer, 0, raw=self._raw)
        self._physical = [_PHYSICAL.index(each) for each in physical]

    def footer(self, rows: int, chunks: Sequence[Chunk]) -> bytes:
        """Return the end of a file whose one row group has some rows: a chunk of each column.

        Raises:
            ValueError: there are not as many chunks as columns.
        """
        told = zip(self._physical, chunks, strict=True)
        columns = _list(_STRUCT, [_column(kind, rows, chunk) for kind, chunk in told])
        sizes = sum(chunk.size for chunk in chunks)
        group = _fields({1: columns, 2: _number(_I64, sizes), 3: _number(_I64, rows)})
        parts = {
            1: _number(_I32, 2),
            2: (_LIST, self._raw[2]),  # the columns
            3: _number(_I64, rows),
            4: _list(_STRUCT, [group]),
            5: (_LIST, self._raw[5]),  # their types in Arrow
            6: (_BINARY, self._raw[6]),  # who wrote it
        }
        data = _fields(parts)
        return b"".join((MAGIC, data, len(data).to_bytes(4, "little"), MAGIC))


def _column(kind: int, values: int, chunk: Chunk) -> bytes:
    told: dict[int, Part] = {
        1: _number(_I32, kind),
        2: _list(_I32, [_signed(each) for each in chunk.encodings]),
        3: _list(_BINARY, []),  # the path, which the columns tell
        4: _number(_I32, chunk.codec),
        5: _number(_I64, values),
        6: _number(_I64, chunk.size),
        7: _number(_I64, chunk.packed),
        9: _number(_I64, chunk.at + chunk.coded),  # behind the dictionary, wherever that ends
    }
    if chunk.coded:
        told[11] = _number(_I64, chunk.at)
    return _fields({2: _number(_I64, 0), 3: (_STRUCT, _fields(told))})


# Reading Thrift


def _structure(
    data: bytes, at: int, depth: int = 1, raw: dict[int, bytes] | None = None
) -> tuple[Fields, int]:
    """Return the fields of a structure, and where it ends; ``None`` for what is no I32.

    What others may read in another way is refused, such as a field that is there twice. Numbers and
    text are read in place, since a header is mostly that, and there are many.

    Args:
        raw: gets the bytes of each field.

    Raises:
        ValueError: it is malformed. IndexError: it goes on behind the data.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} structures are in each other")
    fields: Fields = {}
    number = 0
    while head := data[at]:
        at += 1
        number += head >> 4
        if head < 16:
            number, at = _read_number(data, at)
        if number in fields or number not in _FIELDS:
            raise ValueError(f"there is a field of number {number}, or there are two")
        kind, start = head & 15, at
        value: Any = None
        if kind in _NUMBERS or kind == _BINARY:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _whole(data, at - 1)
            if kind == _BINARY:
                at += value
            value = value >> 1 ^ -(value & 1) if kind == _I32 else None
        elif kind == _STRUCT:
            value, at = _structure(data, at, depth + 1)
        else:
            at = _behind(data, at, kind, depth)
        fields[number] = value
        if raw is not None:
            raw[number] = data[start:at]
    return fields, at + 1


def _behind(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends."""
    if kind in _NUMBERS:
        return _whole(data, at)[1]
    if kind == _BINARY:
        size, at = _whole(data, at)
        return at + size
    if kind == _STRUCT:
        return _structure(data, at, depth + 1)[1]
    if kind == _LIST:
        return _behind_list(data, at, depth + 1)
    if kind in _SIZES:
        return at + _SIZES[kind]
    raise ValueError(f"there is a field of type {kind}")


def _behind_list(data: bytes, at: int, depth: int) -> int:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _whole(data, at)
    if depth > MAX_DEPTH or kind in _SIZES or count > len(data) - at:
        raise ValueError(f"there is a list of {count} of type {kind}")
    for _ in range(count):
        at = _behind(data, at, kind, depth)
    return at


def _whole(data: bytes, at: int) -> tuple[int, int]:
    """Return a number without a sign, and where it ends."""
    byte = data[at]
    number, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise ValueError("there is a number of more than 64 bits")
    return number, at + 1


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    number, at = _whole(data, at)
    return number >> 1 ^ -(number & 1), at


# Writing Thrift

# The type of a field, and its bytes.
Part = tuple[int, bytes]


def _fields(parts: dict[int, Part]) -> bytes:
    written, before = bytearray(), 0
    for number, (kind, data) in parts.items():
        written.append((number - before) << 4 | kind)
        written += data
        before = number
    return bytes(written + b"\0")


def _number(kind: int, value: int) -> Part:
    return kind, _signed(value)


def _signed(value: int) -> bytes:
    return _varint(value << 1)  # none is negative


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _list(kind: int, items: Sequence[bytes]) -> Part:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)
    return _LIST, head + b"".join(items)
