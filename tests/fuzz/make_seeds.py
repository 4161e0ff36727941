"""Write the seeds of each parser from the hand-written and recorded vectors: run it for that.

``python -m tests.fuzz.make_seeds`` writes a file for each parser into ``seeds``: an input a line,
in hexadecimal, behind a line that says where it is from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wsmux.protocols.base import Role
from wsmux.protocols.framing import Opcode
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec

from ..helpers.bus.captured import COMPUTED, NPM
from ..helpers.machine_pairs import ACK, CLOSE, DATA, ERROR, GO_AWAY, message, uint32
from ..helpers.request_heads import NOT_ASCII, REFUSED, TAKEN
from ..helpers.rpc import bad_json, bad_msgpack, bad_protobuf, codec_vectors
from ..helpers.rpc.protobuf_messages import EMPTY, text
from ..helpers.vectors import bymux, durable, js_ws, resumption, yamux, yamux_recorded
from ..helpers.websocket_wire import CONTINUATION, frame
from .corpus import SEEDS
from .harnesses import HARNESSES, VECTOR_EPOCH

__all__ = ["made"]

# Inputs of a parser, evenly chosen, and bytes of one: more would only fill the repository.
MOST, LONGEST = 50, 800

Named = Iterator[tuple[str, bytes]]


def _first(role: Role) -> bytes:
    """Return the byte that every input of a machine or framing starts with."""
    return bytes((role is Role.CLIENT,))


def _framing() -> Named:
    for role in Role:
        parts = [
            frame(role, Opcode.TEXT, b"Hel", fin=False),
            frame(role, Opcode.PING, b"Hello"),
            frame(role, CONTINUATION, b"lo"),
            frame(role, Opcode.BINARY, bytes(200)),
            frame(role, Opcode.BINARY),
            frame(role, Opcode.CLOSE, b"\x03\xe8done"),
        ]
        yield f"examples of RFC 6455, section 5.7, for the {role}", _first(role) + b"".join(parts)
        for part in parts:
            yield f"one of them for the {role}", _first(role) + part


def _byte_framing() -> Named:
    for name, body in _native_messages():
        yield name, b"\0" + body[:2] + bytes((len(body) - 2,)) + body[2:]
    for kind, body in ((8, b"\x03\xe8bye"), (9, b"ping"), (10, b"pong")):
        yield f"control message {kind}", b"\0\0" + bytes((kind, len(body))) + body


def _native_messages() -> Named:
    for stream_id in (0, 1):
        yield f"open {stream_id}", message(stream_id, ACK, uint32(400))
        yield f"data {stream_id}", message(stream_id, DATA, b"hello")
        for kind in (ERROR, CLOSE):
            for direction in (0, 1):
                code = b"\x05" if kind == ERROR else b""
                body = bytes((direction,)) + code
                yield f"{kind} of {direction} on {stream_id}", message(stream_id, kind, body)
    yield "going away", message(0, GO_AWAY, b"\x05")


def _counted(messages: list[bytes]) -> bytes:
    """Put messages behind each other as the harnesses of native wires read them."""
    return b"".join(bytes((len(each),)) + each for each in messages if len(each) < 256)


def _native() -> Named:
    messages = dict(_native_messages())
    for role in Role:
        for stream_id in (0, 1):
            own = [body for name, body in messages.items() if str(stream_id) in name]
            yield f"all on stream {stream_id}", _first(role) + _counted(own)
        for name, body in messages.items():
            yield name, _first(role) + _counted([body])


def _js_ws() -> Named:
    for param in js_ws.PUBLISHED_ENDS:
        scenario, role = param.values
        frames: list[dict[str, Any]] = js_ws.binary_frames(scenario)
        theirs = [bytes.fromhex(each["hex"]) for each in frames if not js_ws.is_from(role, each)]
        yield f"recorded: {param.id}", _first(role) + _counted(theirs)


def _yamux() -> Named:
    for name, talk in yamux.TALKS.items():
        lines = re.findall(r"^\s*> ([0-9a-f |]+)$", talk.lines, re.MULTILINE)
        yield (
            name,
            _first(talk.role) + b"".join(bytes.fromhex(each.replace("|", "")) for each in lines),
        )
    for name, wire in yamux_recorded.RECORDED.items():
        role = Role.SERVER if "client" in name.partition(":")[0] else Role.CLIENT
        yield f"recorded: {name}", _first(role) + bytes.fromhex(wire)


def _bymux() -> Named:
    for name, talk in bymux.CONVERSATIONS.items():
        steps = [step for step in talk.steps if isinstance(step, str) and step.startswith(">")]
        yield name, _first(talk.role) + b"".join(bytes.fromhex(step[1:]) for step in steps)


def _resumption() -> Named:
    for role in Role:
        for vector in resumption.MESSAGES:
            body = bytes.fromhex(vector["hex"])
            if len(body) < 600:
                yield vector["name"], _first(role) + frame(role, Opcode.BINARY, body)
        talk = [b"\0data", b"\5" + bytes(7) + b"\n", b"\0more", b"\6\3\xe8bye"]
        wire = b"".join(frame(role, Opcode.BINARY, each) for each in talk)
        yield "a session to its end", _first(role) + wire
    for vector in resumption.MESSAGES:
        yield (
            f"not in a frame: {vector['name']}",
            _first(Role.CLIENT) + bytes.fromhex(vector["hex"]),
        )


def _durable() -> Named:
    frames = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in durable.FRAMES}
    sides = {vector["name"]: vector["side"] for vector in durable.FRAMES}
    opened = frames["a stream of unknown size"]
    for name, data in frames.items():
        role = Role.SERVER if sides[name] == "sender" else Role.CLIENT
        yield name, _first(role) + data
        if role is Role.SERVER and data != opened:
            yield f"{name}, behind OPEN", _first(role) + opened + data
        if role is Role.CLIENT:
            accepted = b"\x10" + VECTOR_EPOCH + bytes(8)
            yield f"{name}, behind ACCEPTED", _first(role) + accepted + data
    for vector in durable.ILLEGAL:
        role = Role.SERVER if vector["side"] == "sender" else Role.CLIENT
        yield f"refused: {vector['name']}", _first(role) + bytes.fromhex(vector["hex"])
    data = [b"\1" + bytes(11) + b"\3abc", b"\1" + bytes(7) + b"\3\0\0\0\1d"]
    whole = opened + b"".join(data) + b"\2" + bytes(7) + b"\4\0"
    yield "a stream to its end", _first(Role.SERVER) + whole
    told = b"\x10" + VECTOR_EPOCH + bytes(8) + b"\x11" + bytes(8) + b"\x12" + bytes(7) + b"d"
    yield "all answers", _first(Role.CLIENT) + told


def _river(codec: str, malformed: Iterable[Any]) -> Callable[[], Named]:
    def seeds() -> Named:
        for valid in (True, False):
            for captured in codec_vectors.captured(valid):
                if captured.codec.name == codec:
                    yield f"captured: {captured.name}", captured.data
        for bad in malformed:
            yield f"refused: {bad.name}", bad.data

    return seeds


def _river_protobuf() -> Named:
    """Yield what was captured with another codec, carried over: none was with this one."""
    codec = ProtobufCodec()
    for captured in codec_vectors.captured(True):
        if captured.codec.name == "msgpack":
            envelope = captured.codec.decode(captured.data)
            yield f"of {captured.name}", codec.encode(envelope, codec.pack(envelope.payload))
    yield "bytes", EMPTY + text("bytes", b"request")
    for bad in bad_protobuf.TABLE[::6]:
        yield f"refused: {bad.name}", bad.data


def _rmb_envelope() -> Named:
    for row in NPM["envelopes"]:
        yield row["name"], bytes.fromhex(row["serialized_hex"])
    yield "ping", bytes.fromhex(NPM["ping"]["serialized_hex"])
    for row in COMPUTED["relay_errors"]:
        yield row["message"], bytes.fromhex(row["serialized_hex"])
    for row in COMPUTED["signatures"]["cases"]:
        yield row["why"], bytes.fromhex(row["serialized_hex"])


def _rmb_token() -> Named:
    for row in NPM["jwt"]:
        yield f"of {row['signer']}", row["token"].encode()
    for row in COMPUTED["tokens"]["cases"]:
        yield row["why"], (row["token"] or "").encode()


def _request_head() -> Named:
    for name, data in TAKEN.items():
        yield f"taken: {name}", data
    for name, head in (NOT_ASCII | REFUSED).items():
        yield f"refused: {name}", head.data


SOURCES: dict[str, Callable[[], Named]] = {
    "framing": _framing,
    "byte-framing": _byte_framing,
    "native": _native,
    "js-ws": _js_ws,
    "yamux": _yamux,
    "bymux": _bymux,
    "resumption": _resumption,
    "durable": _durable,
    "river-json": _river("json", bad_json.TABLE[::6]),
    "river-msgpack": _river("msgpack", bad_msgpack.TABLE[::6]),
    "river-protobuf": _river_protobuf,
    "rmb-envelope": _rmb_envelope,
    "rmb-token": _rmb_token,
    "request-head": _request_head,
}


def made(name: str) -> str:
    """Return the file of a parser's seeds."""
    found = {data: source for source, data in SOURCES[name]() if len(data) <= LONGEST}
    lines = [f"# {source}\n{data.hex()}\n" for data, source in found.items()]
    return "".join(lines[:: -(-len(lines) // MOST)])


if __name__ == "__main__":
    for each in HARNESSES:
        (SEEDS / f"{each}.txt").write_text(made(each))
