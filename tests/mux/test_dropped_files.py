"""Drop files over streams with bytes in their buffers; in a process of its own, which may lock up.

The finalizer of a file flushes it. It may run anywhere, here while the thread holds the
connection's lock.
"""

from __future__ import annotations

import pytest

from ..helpers.dropped_script import run_dropping
from ..helpers.marking import wide
from ..helpers.wires import NAMES, WIRES

DROP = """
    import gc
    import wsmux

    def drop(mode: str, data: bytes | str) -> None:
        client, server = wsmux.pair(protocol={protocol!r})
        stream = client.open_stream()
        far = server.accept_stream()
        file = stream.makefile(mode)
        file.write(data)
        file.itself = [file] if {cycle} else None
        gc.disable()
        if {cycle}:
            del file, stream
            with client._multiplexer.mutex:
                gc.collect()
        else:
            with client._multiplexer.mutex:
                del file, stream
        gc.enable()
        client.ping(5)
        try:
            print(mode, "read", far.read(), flush=True)
        except wsmux.StreamReset as error:
            print(mode, "reset with", error.code, flush=True)
        client.close()
        server.close()

    for mode in {modes!r}:
        drop(mode, b"never flushed" if "b" in mode else "never flushed")
"""

MODES = ("wb", "rwb", "w", "rw")


@pytest.mark.parametrize("protocol", ["wsmux", *wide(*(name for name in NAMES if name != "wsmux"))])
@pytest.mark.parametrize("cycle", [False, True], ids=["at-once", "by-the-collector"])
def test_a_file_dropped_unflushed_under_the_lock_does_not_lock_up(
    cycle: bool, protocol: str
) -> None:
    done = run_dropping(DROP, modes=MODES, cycle=cycle, protocol=protocol)
    expected = "reset with 0" if WIRES[protocol].resets else "read b''"
    assert done.stdout == "".join(f"{mode} {expected}\n" for mode in MODES), done.stderr
