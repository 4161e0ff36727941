"""Ctrl-C at any step of a write leaves no byte lost, and none there twice."""

from __future__ import annotations

from ..helpers.durable import Sink, pattern, receiving
from ..helpers.interrupts import interrupted_at
from ..helpers.timeouts import WAIT

DATA = pattern(0, 100_000)  # two frames of the wire


def test_a_write_interrupted_at_any_step_goes_on_exactly() -> None:
    sink, number, interrupted = Sink(), 0, True
    with receiving(sink.handle, sink) as connect:
        connection = connect()
        while interrupted:
            number += 1
            name = str(number)
            stream = connection.open_stream(WAIT, durable=name)
            interrupted = interrupted_at(number, lambda stream=stream: stream.write(DATA))
            stream.suspend()
            if connection.closed:  # the interrupt came within a change of its state
                connection = connect()
            with connection.open_stream(WAIT, durable=name) as again:
                again.timeout = WAIT
                again.write(DATA[again.offset :])
            assert sink.data[name] == DATA, f"interrupted at step {number}"
    assert number > 20
