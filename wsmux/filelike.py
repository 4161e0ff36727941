"""Put the buffered files of the standard library over a stream."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["Both", "ReadBytes", "Text", "TextOptions", "WriteBytes", "make_file"]

# The modes of ``Stream.makefile``, by the file that each makes.
Both: TypeAlias = Literal["rwb", "rbw", "wrb", "wbr", "brw", "bwr"]
ReadBytes: TypeAlias = Literal["rb", "br"]
WriteBytes: TypeAlias = Literal["wb", "bw"]
Text: TypeAlias = Literal[
    "r", "w", "rw", "wr", "rt", "tr", "wt", "tw", "rwt", "rtw", "wrt", "wtr", "trw", "twr"
]

File: TypeAlias = io.BufferedRWPair | io.BufferedReader | io.BufferedWriter | io.TextIOWrapper


class TextOptions(TypedDict, total=False):
    """Describe the arguments that text files take; see ``io.TextIOWrapper``."""

    encoding: str | None
    errors: str | None
    newline: str | None
    line_buffering: bool
    write_through: bool


def make_file(stream: Stream, mode: str, buffering: int, **text: Unpack[TextOptions]) -> File:
    """Return a file as ``Stream.makefile`` tells.

    Raises:
        ValueError: there is no such mode, or no buffer.
    """
    if set(mode) - set("rwbt") or not set(mode) & set("rw") or set(mode) >= set("bt"):
        raise ValueError(f"mode must be made of r and w, and of b or t, not {mode!r}")
    if buffering == 0:
        raise ValueError(
            "the files of makefile() have a buffer: for bytes without one use the stream itself, "
            "which is a file, too"
        )
    size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else buffering
    buffered: Any  # a pair is a buffer that TextIOWrapper takes, but not by its stub
    if "r" in mode and "w" in mode:
        buffered = _BufferedPair(stream, size)
    elif "r" in mode:
        buffered = io.BufferedReader(stream, size)
    else:
        buffered = io.BufferedWriter(stream, size)
    made: File = buffered if "b" in mode else io.TextIOWrapper(buffered, **text)
    return made


class _BufferedPair(io.BufferedRWPair):
    """Be a pair that may be collected unclosed, as the other buffered files may."""

    def __init__(self, stream: Stream, size: int) -> None:
        super().__init__(stream, stream, size)
        self._stream = stream

    def __del__(self) -> None:
        # BufferedRWPair's own flushes without a word; the writer inside says it to the stream.
        return

    def _dealloc_warn(self, source: object) -> None:
        self._stream._dealloc_warn(source)
