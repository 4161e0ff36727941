"""IPC streams are checked message by message; whatever the bytes are, the error is a typed one."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.rpc import RiverError
from wsmux.spark.protocol import FAILURE, encode_line
from wsmux.spark.server import arrow_stream
from wsmux.spark.server.arrow_stream import FRAME, ArrowSource, Limits, receive, send
from wsmux.spark.store.schemas import conform, stored_schema

from ...helpers.spark.arrow_data import SCHEMA, ids, ipc, pa, rows, wide

pytestmark = pytest.mark.spark

GOOD = ipc(SCHEMA, [rows(0, 10), rows(10, 5)])
END = b"\xff\xff\xff\xff\0\0\0\0"


class Filling(io.BytesIO):
    """A stream whose bytes are there already."""

    def fill(self, target: Any) -> int:
        return self.readinto(target)


def received(data: bytes, limits: Limits | None = None) -> list[Any]:
    bounds = limits or Limits()
    _, batches = receive(ArrowSource(Filling(data), bounds), bounds)
    return list(batches)


def refused(data: bytes, limits: Limits | None = None) -> str:
    with pytest.raises(RiverError) as caught:
        received(data, limits)
    assert "\n" not in caught.value.message
    return f"{caught.value.code}: {caught.value.message}"


# What is sent is received


def test_batches_are_received_and_summed_up() -> None:
    source = ArrowSource(Filling(GOOD), Limits(), summed=True)
    schema, batches = receive(source, Limits())
    assert schema == SCHEMA
    assert ids(batches) == list(range(15))
    assert (source.bytes, source.crc) == (len(GOOD), zlib.crc32(GOOD))


def test_an_empty_stream_has_a_schema() -> None:
    assert received(ipc(SCHEMA, [])) == []


def test_every_type_is_received() -> None:
    (batch,) = received(ipc(wide().schema, [wide()]))
    assert str(batch.to_pylist()) == str(wide().to_pylist())


def test_dictionaries_are_received_and_may_be_replaced() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [pa.record_batch([pa.array([word], kind)], names=["x"]) for word in "ab"]
    found = received(ipc(batches[0].schema, batches))
    assert [batch.to_pylist() for batch in found] == [[{"x": "a"}], [{"x": "b"}]]


class Frames:
    """Take what is written, until there is an error."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []
        self.room = room

    def write(self, data: Any) -> int:
        if len(self.data) >= self.room:
            raise ConnectionResetError("the peer has gone")
        self.data += data
        self.sizes.append(len(data))
        return len(data)


def test_what_is_sent_goes_in_frames() -> None:
    large = pa.record_batch(
        [pa.array(range(50_000)), pa.array([b"x" * 9] * 50_000)], names=["a", "b"]
    )
    sink = Frames()
    send(sink, large.schema, [large, large], Limits())
    assert [batch.num_rows for batch in received(bytes(sink.data))] == [50_000] * 2
    assert all(size % FRAME == 0 for size in sink.sizes[:-1])
    assert sink.data == ipc(large.schema, [large, large])


def test_a_batch_above_the_limit_is_sent_in_pieces() -> None:
    sink, limits = Frames(), Limits(batch_bytes=10_000)
    send(sink, SCHEMA, [rows(0, 5000)], limits)
    found = received(bytes(sink.data), limits)
    assert ids(found) == list(range(5000))
    assert len(found) > 4


def test_batches_without_rows_are_sent_where_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what was gathered with them: whoever waits hears of it before a frame is full."""
    sink, lengths = Frames(), []

    def scan() -> Iterator[Any]:
        for batch in (rows(0, 0), rows(0, 5), rows(0, 0)):
            yield batch
            lengths.append(len(sink.data))

    send(sink, SCHEMA, scan(), Limits(), empty=True)
    assert [batch.num_rows for batch in received(bytes(sink.data))] == [5]
    assert lengths == [0, 0, 0]
    monkeypatch.setattr(arrow_stream, "SILENCE", -1.0)
    sink, lengths = Frames(), []
    send(sink, SCHEMA, scan(), Limits(), empty=True)
    assert [batch.num_rows for batch in received(bytes(sink.data))] == [0, 5, 0]
    assert 0 < lengths[0] < lengths[1] < lengths[2]
    sink, lengths = Frames(), []
    send(sink, SCHEMA, scan(), Limits())  # which earlier clients cannot read
    assert [batch.num_rows for batch in received(bytes(sink.data))] == [5]
    assert 0 == lengths[0] < lengths[1] == lengths[2]


def test_what_fails_on_the_way_has_no_end_marker() -> None:
    def failing() -> Iterator[Any]:
        yield rows(0, 10)
        raise RiverError("CORRUPT", "half way")

    sink = Frames()
    with pytest.raises(RiverError, match="half way"):
        send(sink, SCHEMA, failing(), Limits())
    assert not sink.data.endswith(END)
    assert bytes(sink.data) == ipc(SCHEMA, [rows(0, 10)])[: -len(END)]


def test_what_fails_on_a_dead_stream_fails_as_it_does() -> None:
    """The stream may be tried again, and what gave the batches may not: it has no more of them."""

    def failing() -> Iterator[Any]:
        yield rows(0, 10)
        raise RiverError("CORRUPT", "half way")

    class Dead:
        def write(self, data: Any) -> int:
            raise ConnectionResetError("cut")

    with pytest.raises(RiverError, match="half way"):
        send(Dead(), SCHEMA, failing(), Limits())


def test_an_error_of_the_stream_is_raised_as_it_is() -> None:
    with pytest.raises(ConnectionResetError, match="the peer has gone"):
        send(Frames(room=0), SCHEMA, [rows(0, 50_000)], Limits())

    class Broken(io.BytesIO):
        def fill(self, target: Any) -> int:
            raise ConnectionResetError("the peer has gone")

    with pytest.raises(ConnectionResetError, match="the peer has gone"):
        receive(ArrowSource(Broken(), Limits()), Limits())


def test_a_failure_told_on_the_way_is_raised() -> None:
    told = FAILURE + encode_line({"ok": False, "code": "CORRUPT", "message": "half way"})
    source = ArrowSource(Filling(GOOD[: -len(END)] + told), Limits())
    _, batches = receive(source, Limits())
    found = [next(batches), next(batches)]
    with pytest.raises(RiverError, match="half way") as caught:
        next(batches)
    assert caught.value.code == "CORRUPT"
    assert ids(found) == list(range(15))
    for line in (b"{}\n", b"garbage\n", b"[]\n", b'{"ok":false}\n'):
        assert refused(FAILURE + line).startswith("BAD_HEADER")
    with pytest.raises(OSError, match="negative metadata length"):
        pa.ipc.open_stream(GOOD[: -len(END)] + told).read_all()


# What is no stream


@pytest.mark.parametrize("end", range(0, len(GOOD), 5))
def test_a_stream_cut_anywhere_is_refused(end: int) -> None:
    assert refused(GOOD[:end]).startswith("BAD_ARROW: the Arrow stream ended")


def test_a_stream_without_its_end_marker_is_refused() -> None:
    assert GOOD.endswith(END)
    assert "ended within a message" in refused(GOOD[: -len(END)])


def test_bytes_behind_the_end_are_refused() -> None:
    assert "follow the end" in refused(GOOD + b"x")
    assert "follow the end" in refused(GOOD + GOOD)


BAD = {
    "text": b"hello, this is no Arrow stream",
    "zeroes": bytes(100),
    "ones": b"\xff" * 100,
    "end only": END,
    "a Parquet file": b"PAR1" + bytes(50),
    "an Arrow file": b"ARROW1\0\0" + GOOD,
    "old framing": GOOD[4:],
    "no root": b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8,
    "batch first": GOOD[struct.unpack_from("<I", GOOD, 4)[0] + 8 :],
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_garbage_is_refused(data: bytes) -> None:
    assert refused(data).startswith(("BAD_ARROW: ", "TOO_LARGE: the head"))


def test_lengths_are_believed_up_to_a_limit_only() -> None:
    assert refused(b"\xff\xff\xff\xff\xff\xff\xff\x7f").startswith("TOO_LARGE: the head")
    small = Limits(batch_bytes=100)
    assert refused(GOOD, small).startswith("TOO_LARGE: a record batch has")
    assert "up to 100 are accepted" in refused(GOOD, small)
    assert refused(GOOD, Limits(head_bytes=64)).startswith("TOO_LARGE: the head")
    assert refused(GOOD, Limits(batch_rows=9)).startswith("TOO_LARGE: a record batch has 10 rows")


def test_rows_without_bytes_are_counted() -> None:
    nothing = pa.record_batch([pa.nulls(2**25)], names=["x"])
    assert "rows" in refused(ipc(nothing.schema, [nothing]))


def test_a_dictionary_cannot_blow_up() -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), ["x" * 1000])
    batch = pa.record_batch([text], names=["x"])
    data = ipc(batch.schema, [batch])
    assert len(data) < 4000
    assert refused(data, Limits(batch_bytes=100_000)).startswith("TOO_LARGE: a record batch has")


def coded(columns: int, word: str) -> Any:
    """Return a batch of one row, with a large dictionary for each column."""
    words = [f"{word}{number}" + "x" * 900 for number in range(100)]
    one = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), words)
    return pa.record_batch([one] * columns, names=[f"c{number}" for number in range(columns)])


def test_dictionaries_of_many_columns_have_a_bound_together() -> None:
    batch = coded(8, "a")
    text = "TOO_LARGE: the dictionaries have more than the 100000 bytes"
    assert refused(ipc(batch.schema, [batch]), Limits(batch_bytes=100_000)).startswith(text)


def test_dictionaries_that_were_replaced_do_not_count() -> None:
    batches = [coded(1, word) for word in "abcd"]
    found = received(ipc(batches[0].schema, batches), Limits(batch_bytes=100_000))
    assert [batch.column(0)[0].as_py()[0] for batch in found] == [*"abcd"]


def test_delta_dictionaries_are_refused() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    one = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["a"])
    two = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), ["a", "b"])
    batches = [pa.record_batch([each], names=["x"]) for each in (one, two)]
    schema = pa.schema([("x", kind)])
    assert "delta" in refused(ipc(schema, batches, emit_dictionary_deltas=True))


def test_compressed_batches_are_refused() -> None:
    assert "compressed" in refused(ipc(SCHEMA, [rows(0, 1000)], compression="lz4"))


WORDS = pa.record_batch([pa.array(["abc", "de", "f"])], names=["words"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (struct.pack("<4i", 0, 3, 5, 6), struct.pack("<4i", 0, 3, 2, 6)),
        (struct.pack("<4i", 0, 3, 5, 6), struct.pack("<4i", 0, 3, 5, 2**30)),
        (struct.pack("<4i", 0, 3, 5, 6), struct.pack("<4i", -9, 3, 5, 6)),
        (b"abcdef", b"\xff\xff\xff\xff\xff\xff"),
        (b"words", b"\xff\xff\xff\xff\xff"),
    ],
    ids=["falling", "far", "negative", "text", "name"],
)
def test_values_that_could_crash_the_process_are_refused(old: bytes, new: bytes) -> None:
    data = ipc(WORDS.schema, [WORDS])
    assert data.count(old) == 1
    assert refused(data.replace(old, new)).startswith("BAD_ARROW")


WIDE = ipc(wide().schema, [wide()])


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_any_damage_is_an_error_or_can_be_worked_on(seed: int) -> None:
    """Some bytes may change without anybody noticing: those of values."""
    chosen, damaged = random.Random(seed), bytearray(WIDE)
    for _ in range(chosen.randrange(1, 6)):
        damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
    with suppress(RiverError):
        schema, batches = receive(ArrowSource(Filling(damaged), Limits()), Limits())
        stored = stored_schema(schema)
        for batch in batches:
            made = conform(batch, stored)
            made.validate(full=True)
            assert ipc(stored, [made])


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error(data: bytes) -> None:
    assert refused(data).startswith(("BAD_ARROW: ", "TOO_LARGE: "))
