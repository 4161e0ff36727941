"""Describe a protobuf service with a method of each kind, without a compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

__all__ = ["WORDS", "Number", "Word"]

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
