"""Draw what codecs carry, and hold a codec to its promises for any bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from wsmux.rpc.wire.codec import Codec
from wsmux.rpc.wire.envelope import MAX_COUNTER, Envelope, EnvelopeError
from wsmux.rpc.wire.values import MAX_SAFE, BigInt

from .codec_messages import ENVELOPE

__all__ = [
    "arrives",
    "damaged",
    "envelopes_of",
    "exactly",
    "payloads",
    "payloads_of",
    "taken_or_refused",
    "texts",
]

texts = st.text(st.characters(exclude_categories=["Cs"]))
small = st.integers(-MAX_SAFE, MAX_SAFE)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    small,
    st.integers(),
    st.integers().map(BigInt),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.binary(),
)
names = texts.filter(lambda name: name not in {"$t", "$b", "__proto__"})


def payloads_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=20
    )


payloads = payloads_of(scalars)


def envelopes_of(
    counts: st.SearchStrategy[int], names: st.SearchStrategy[str | None]
) -> st.SearchStrategy[Envelope]:
    """Draw messages with these counters, and these names of services and procedures."""
    return st.builds(
        Envelope,
        texts,
        texts,
        texts,
        counts,
        counts,
        texts,
        counts,
        payloads,
        names,
        names,
        st.none() | st.tuples(texts, texts),
        st.none() | st.integers(0, MAX_COUNTER),
    )


def arrives(value: Any) -> Any:
    """Return what stands for a value at the other end, with its exact types."""
    if isinstance(value, list):
        return [arrives(item) for item in value]
    if isinstance(value, dict):
        return {key: arrives(item) for key, item in value.items()}
    big = type(value) is int and not -MAX_SAFE <= value <= MAX_SAFE
    return (BigInt if big else type(value), value)


def exactly(value: Any) -> Any:
    """Return a value with its exact types."""
    if isinstance(value, list):
        return [exactly(item) for item in value]
    if isinstance(value, dict):
        return {key: exactly(item) for key, item in value.items()}
    return (type(value), value)


def taken_or_refused(codec: Codec, data: bytes) -> None:
    """Check that nothing but our error comes of any bytes, with and without their payload."""
    whole: Envelope | None = None
    with suppress(EnvelopeError):
        whole = codec.decode(data)
        assert isinstance(whole, Envelope)
    try:
        head = codec.decode_head(data)
    except EnvelopeError:
        assert whole is None
    else:
        assert head.payload is None
        assert whole is None or head == whole._replace(payload=None)


def damaged(codec: Codec, data: st.DataObject) -> bytes:
    """Draw a message in which a few bytes are others, too many or too few."""
    good = codec.encode(ENVELOPE, codec.pack(data.draw(payloads)))
    start = data.draw(st.integers(0, len(good)))
    stop = data.draw(st.integers(start, min(len(good), start + 4)))
    return good[:start] + data.draw(st.binary(max_size=4)) + good[stop:]
