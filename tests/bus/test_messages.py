"""What is loaded, and what mypy reads, are the messages that ``types.proto`` describes."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default

import wsmux.bus.wire
from wsmux.bus.wire.messages import Envelope

from ..helpers.proto_documents import compiled, described, loaded, typed

PLACE = files(wsmux.bus.wire)
LOADED = FileDescriptorProto.FromString(Envelope.DESCRIPTOR.file.serialized_pb)


def test_what_is_loaded_is_what_the_document_says() -> None:
    assert loaded(LOADED) == described(PLACE.joinpath("types.proto").read_text())
    assert (LOADED.package, LOADED.syntax) == ("types", "proto3")


def test_what_mypy_reads_has_the_fields_that_are_loaded() -> None:
    assert typed(PLACE.joinpath("types_pb2.pyi").read_text()) == {
        message.name: [each.name for each in message.field] for message in LOADED.message_type
    }


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="no compiler: pip install grpcio-tools")
def test_the_compiler_gives_what_is_loaded(tmp_path: Path) -> None:
    shipped = FileDescriptorSet.FromString(PLACE.joinpath("types.binpb").read_bytes())
    assert compiled("wsmux/bus/wire/types.proto", tmp_path / "out") == shipped


def test_other_messages_of_the_network_may_be_beside_them() -> None:
    assert Envelope.DESCRIPTOR.file.pool is not Default()
