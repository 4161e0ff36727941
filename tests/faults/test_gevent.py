"""Run the core tests of streams in a process that gevent has patched, both ends among them.

How they run without it is shown by running them; under servers of gevent, the client being outside,
the plain tests run them, too. Left out are the tests that look where threads
wait: ``sys._current_frames`` does not know greenlets.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.programs import needs
from ..helpers.timeouts import WAIT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gevent") is None, reason="gevent is not installed"
)

CHECKOUT = Path(__file__).parent.parent.parent

# What gevent keeps for itself is made first, or a test would count as leaking it.
PROGRAM = """
from gevent import get_hub, monkey, sleep
monkey.patch_all()
sleep(0)
get_hub().threadpool.apply(int)
import sys
import pytest
options = ["-n", "0", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""

LOOK_AT_THREADS = (
    "test_a_stream_dropped_under_the_lock_is_reset_without_further_traffic",
    "test_a_close_that_another_thread_sends_ends_the_connection_at_once",
)

FILES = (
    "tests/mux/test_connection.py",
    "tests/transport/test_close_notices.py",
    "tests/mux/test_files.py",
    "tests/mux/test_halves.py",
    "tests/endpoints/test_stream_handlers.py",
    "tests/mux/test_limits.py",
    "tests/mux/test_ping.py",
    "tests/mux/test_stream.py",
    "tests/whole/test_stress.py",
    "tests/mux/test_windows.py",
)

# Every wire on one carrier of its own; both ends are in the patched process.
CARRIERS = "[ws-wsmux or [tcp-yamux or [socketpair-bymux or [unix-js-ws"


COMMANDS = """
from gevent import monkey
monkey.patch_all()
import wsmux
from wsmux.tunnel import RemoteProcess, TunnelServer
served = TunnelServer(programs=["sh", "cat"]).serve
with wsmux.serve(stream_handler=served, workers=16) as server, wsmux.connect(server.url) as client:
    with RemoteProcess(client, ["cat"]) as process:
        process.stdio.write(b"hello")  # which another greenlet copies
        process.stdio.close_write()
        print(process.stdio.read(), process.wait(10))
    with RemoteProcess(client, ["sh", "-c", "exit 7"]) as process:
        print(process.wait(10))
"""


def test_a_command_of_a_tunnel_lets_other_greenlets_run() -> None:
    needs("sh", "cat")
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert (done.returncode, done.stdout) == (0, "b'hello' 0\n7\n"), done.stderr[-4000:]


@pytest.mark.long
def test_the_tests_of_streams_pass_under_gevent() -> None:
    left_out = " or ".join(LOOK_AT_THREADS)
    chosen = f"({CARRIERS}) and not ({left_out})"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *FILES, "-k", chosen],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
