"""Read a .proto document, and the descriptors that were made of it, into the same form."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

__all__ = ["compiled", "described", "loaded", "typed"]

ROOT = Path(__file__).parents[2]

# A field is (label, type, name, number, oneof).
Fields = list[tuple[str, str, str, int, str]]
TOKEN = re.compile(r"[\w.]+|[{}=;]")


def described(text: str) -> dict[str, Fields]:
    """Read the messages of a file that has nothing but messages of fields and oneofs."""
    tokens = TOKEN.findall(re.sub(r'//.*|syntax = "proto3";|package [\w.]+;', "", text))
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


def loaded(file: FileDescriptorProto) -> dict[str, Fields]:
    """Return the messages that descriptors tell of."""
    return {message.name: _fields(message, file.package) for message in file.message_type}


def _fields(message: DescriptorProto, package: str) -> Fields:
    fields = []
    for each in message.field:
        label = "repeated" if each.label == each.LABEL_REPEATED else ""
        label = "optional" if each.proto3_optional else label
        inside = each.HasField("oneof_index") and not each.proto3_optional
        oneof = message.oneof_decl[each.oneof_index].name if inside else ""
        scalar = each.Type.Name(each.type).removeprefix("TYPE_").lower()
        type_ = each.type_name.removeprefix(f".{package}.") or scalar
        fields.append((label, type_, each.name, each.number, oneof))
    return fields


def typed(text: str) -> dict[str, list[str]]:
    """Return the fields of each message that mypy reads of."""
    return {
        each.name: [
            line.target.id
            for line in each.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.endswith("_FIELD_NUMBER")
        ]
        for each in ast.parse(text).body
        if isinstance(each, ast.ClassDef)
    }


def compiled(document: str, out: Path) -> FileDescriptorSet:
    """Return what the compiler makes of a document, named from the root; it must be installed."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}"]
    subprocess.run([*command, document], cwd=ROOT, check=True, timeout=60)
    return FileDescriptorSet.FromString(out.read_bytes())
