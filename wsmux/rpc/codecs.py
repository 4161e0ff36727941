"""Find a codec by its name."""

from __future__ import annotations

from .codec import Codec
from .json_codec import JsonCodec

__all__ = ["codec_of"]


def codec_of(codec: str | Codec) -> Codec:
    """Return the codec named ``"json"`` or ``"msgpack"``, with its default limits, or ``codec``.

    Raises:
        ValueError: there is none of that name.
        ImportError: msgpack is asked for, and not installed.
    """
    if isinstance(codec, Codec):
        return codec
    if codec == JsonCodec.name:
        return JsonCodec()
    if codec == "msgpack":
        from .msgpack_codec import MsgpackCodec  # needs a package that JSON does not

        return MsgpackCodec()
    raise ValueError(f"the codecs are 'json' and 'msgpack', not {codec!r}")
