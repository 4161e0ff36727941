"""Drop files over streams with bytes in their buffers; in a process of its own, which may lock up.

The finalizer of a file flushes it. It may run anywhere, here while the thread holds the
connection's lock.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import wsmux

from ..helpers.scripted import WAIT
from ..helpers.wires import NAMES, WIRES

DROP = """
    import gc, sys, threading, wsmux

    client, server = wsmux.pair(protocol={protocol!r})
    stream = client.open_stream()
    far = server.accept_stream()
    file = stream.makefile({mode!r})
    file.write({data!r})
    file.itself = [file] if {cycle} else None
    gc.disable()
    if {cycle}:
        del file, stream
        with client._multiplexer.mutex:
            gc.collect()
    else:
        with client._multiplexer.mutex:
            del file, stream
    client.ping(5)
    try:
        print("read", far.read())
    except wsmux.StreamReset as error:
        print("reset with", error.code)
    client.close()
    server.close()
"""


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("cycle", [False, True], ids=["at-once", "by-the-collector"])
@pytest.mark.parametrize("mode", ["wb", "rwb", "w", "rw"])
def test_a_file_dropped_unflushed_under_the_lock_does_not_lock_up(
    mode: str, cycle: bool, protocol: str
) -> None:
    data: bytes | str = b"never flushed" if "b" in mode else "never flushed"
    script = textwrap.dedent(DROP).format(mode=mode, data=data, cycle=cycle, protocol=protocol)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT,
        env={"PYTHONPATH": str(Path(wsmux.__file__).parent.parent)},
        check=False,
    )
    expected = "reset with 0\n" if WIRES[protocol].resets else "read b''\n"
    assert done.stdout == expected, done.stderr
