"""Describe and offer a protobuf service with a method of each kind, without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from wsmux import rpc

__all__ = ["NAMES", "WORDS", "Number", "Word", "failure", "served"]

_FILE = FileDescriptorProto(name="words.proto", package="shop.v1", syntax="proto3")
_word = _FILE.message_type.add(name="Word")
_word.field.add(name="text", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
_number = _FILE.message_type.add(name="Number")
_number.field.add(name="value", number=1, type="TYPE_UINT32", label="LABEL_OPTIONAL")
_words = _FILE.service.add(name="Words")
_words.method.add(name="Shout", input_type="Word", output_type="Word")
_words.method.add(name="Spell", input_type="Word", output_type="Word", server_streaming=True)
_words.method.add(name="Count", input_type="Word", output_type="Number", client_streaming=True)
_words.method.add(
    name="Chat", input_type="Word", output_type="Word", client_streaming=True, server_streaming=True
)
_words.method.add(name="Later", input_type="Word", output_type="Word")

_POOL = DescriptorPool()
_POOL.Add(_FILE)

WORDS = _POOL.FindServiceByName("shop.v1.Words")

# The classes are made at run time, so mypy knows of no fields.
Word: Any = GetMessageClass(_POOL.FindMessageTypeByName("shop.v1.Word"))
Number: Any = GetMessageClass(_POOL.FindMessageTypeByName("shop.v1.Number"))


NAMES = {"metadata": {"field": "text"}, "details": [{"typeName": "shop.v1.Word", "value": b"\x01"}]}


def served(told: list[Any] | None = None) -> rpc.ProtobufService:
    """Return the service, but for one of its methods."""
    words = rpc.ProtobufService(WORDS, state=lambda context: {"calls": 0})

    @words.method()
    def Shout(ctx: rpc.Context, request: Any) -> Any:
        match request.text:
            case "bad":
                raise rpc.RiverError("INVALID_ARGUMENT", "no such word", NAMES)
            case "cancel":
                ctx.cancel("by the handler")
            case "fail":
                raise KeyError("fail")
            case "undeclared":
                raise rpc.RiverError("OURS", "of no gRPC")
            case "more":
                raise rpc.RiverError("NOT_FOUND", "with more", {"other": 1})
            case "bytes":
                return b"no message"
            case "number":
                return Number(value=1)
            case "whoami":
                return Word(text=f"{ctx.service} {ctx.procedure} {ctx.metadata}")
        return Word(text=request.text.upper())

    @words.method()
    def Spell(ctx: rpc.Context, request: Any) -> Iterator[Any]:
        for letter in request.text:
            if letter == "!":
                raise RuntimeError("an exclamation")
            bad = rpc.Err(rpc.RiverError("OUT_OF_RANGE", "a question"))
            yield bad if letter == "?" else Word(text=letter)

    @words.method(name="Count")
    def count_them(ctx: rpc.Context, requests: Any) -> Any:
        return Number(value=sum(1 for _ in requests))

    @words.method()
    def Chat(ctx: rpc.Context, requests: Any, responses: Any) -> None:
        try:
            for request in requests:
                responses.write(Word(text=request.text.upper()))
        except rpc.RiverError as error:
            if told is not None:
                told.append(error)
            raise

    return words


def failure(call: Callable[[], Any]) -> rpc.RiverError:
    with pytest.raises(rpc.RiverError) as caught:
        call()
    return caught.value
