"""Whole conversations, written by hand, of ``helpers/vectors``, mean and give what they must."""

from __future__ import annotations

import pytest

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols import events as ev
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.machine_pairs import outbox
from ..helpers.tables import each_case
from ..helpers.vectors.yamux import TALKS
from ..helpers.yamux_wire import yamux


def of(wire: str) -> bytes:
    return bytes.fromhex(wire.replace("|", " "))


def call(machine: YamuxProtocol, line: str) -> object:
    names = {name: getattr(machine, name) for name in dir(machine) if not name.startswith("_")}
    return eval(line, {"__builtins__": {}}, names)


def step(machine: YamuxProtocol, line: str) -> None:
    mark, rest = line[0], line[1:]
    if mark == ">":
        machine.receive_data(of(rest))
    elif mark == "!":
        assert machine.events() == eval(rest.strip(), vars(ev)), line
    else:
        assert call(machine, line) is not False, line


@each_case
@pytest.mark.parametrize("name", TALKS)
def test_conversation(name: str) -> None:
    talk = TALKS[name]
    machine = yamux(talk.role, **talk.limits)
    sent = b""
    error = ""
    for line in filter(None, map(str.strip, talk.lines.splitlines())):
        if line.startswith("<"):
            sent += b"".join(outbox(machine))
            expected = of(line[1:])
            assert sent[: len(expected)] == expected, line
            sent = sent[len(expected) :]
            continue
        assert not sent, f"sent before {line!r}"
        try:
            step(machine, line)
        except RemoteProtocolError as caught:
            error = str(caught)
    assert error == talk.error
