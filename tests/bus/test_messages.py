"""What is loaded, and what mypy reads, are the messages that ``types.proto`` describes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import Default

import wsmux.bus.wire
from wsmux.bus.wire.messages import Envelope

PLACE = files(wsmux.bus.wire)
ROOT = Path(wsmux.__file__).parent.parent
LOADED = FileDescriptorProto.FromString(Envelope.DESCRIPTOR.file.serialized_pb)

# A field is (label, type, name, number, oneof).
Fields = list[tuple[str, str, str, int, str]]
TOKEN = re.compile(r"[\w.]+|[{}=;]")


def described(text: str) -> dict[str, Fields]:
    """Read the messages of a file that has nothing but messages of fields and oneofs."""
    tokens = TOKEN.findall(re.sub(r'//.*|syntax = "proto3";|package types;', "", text))
    messages: dict[str, Fields] = {}
    message, oneof = "", ""
    line: list[str] = []
    for token in tokens:
        if token == "{":
            kind, name = line
            message, oneof = (name, "") if kind == "message" else (message, name)
            messages.setdefault(message, [])
        elif token == "}":
            oneof, message = "", message if oneof else ""
        elif token == ";":
            *label, type_, name, equals, number = line
            assert equals == "="
            messages[message].append(("".join(label), type_, name, int(number), oneof))
        line = [] if token in "{};" else [*line, token]
    return messages


def loaded(message: DescriptorProto) -> Fields:
    fields = []
    for each in message.field:
        label = "repeated" if each.label == each.LABEL_REPEATED else ""
        label = "optional" if each.proto3_optional else label
        inside = each.HasField("oneof_index") and not each.proto3_optional
        oneof = message.oneof_decl[each.oneof_index].name if inside else ""
        scalar = each.Type.Name(each.type).removeprefix("TYPE_").lower()
        type_ = each.type_name.removeprefix(".types.") or scalar
        fields.append((label, type_, each.name, each.number, oneof))
    return fields


def test_what_is_loaded_is_what_the_document_says() -> None:
    text = PLACE.joinpath("types.proto").read_text()
    assert {each.name: loaded(each) for each in LOADED.message_type} == described(text)
    assert (LOADED.package, LOADED.syntax) == ("types", "proto3")


def test_what_mypy_reads_has_the_fields_that_are_loaded() -> None:
    classes = {
        each.name: [
            line.target.id
            for line in each.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.endswith("_FIELD_NUMBER")
        ]
        for each in ast.parse(PLACE.joinpath("types_pb2.pyi").read_text()).body
        if isinstance(each, ast.ClassDef)
    }
    assert classes == {
        message.name: [each.name for each in message.field] for message in LOADED.message_type
    }


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="no compiler: pip install grpcio-tools")
def test_the_compiler_gives_what_is_loaded(tmp_path: Path) -> None:
    document, out = "wsmux/bus/wire/types.proto", tmp_path / "out"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, document], cwd=ROOT, check=True, timeout=60)
    compiled, shipped = (
        FileDescriptorSet.FromString(data)
        for data in (out.read_bytes(), PLACE.joinpath("types.binpb").read_bytes())
    )
    assert compiled == shipped


def test_other_messages_of_the_network_may_be_beside_them() -> None:
    assert Envelope.DESCRIPTOR.file.pool is not Default()
