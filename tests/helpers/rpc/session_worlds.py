"""Name the worlds that are explored: ``python -m tests.helpers.rpc.session_worlds NAME``.

It explores one as far as its bounds allow, and prints the figures as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import wsmux
from wsmux.rpc.options import Options

from ..exploration import Explored, explore
from ..load.measuring import CHECKOUT
from .session_world import Bounds, World, calm

__all__ = ["WORLDS", "explore_apart"]

# A world has some ten to some hundred thousand states within them. With two losses and two beats it
# has more than memory holds.
LARGE = Bounds(calls=2, losses=1, beats=1, graces=1, restarts=1)
TWO_LOSSES, TWO_BEATS = LARGE._replace(losses=2), LARGE._replace(beats=2)
MOST = 2 * 10**6

# Bounds, options of the client, and those of the server.
WORLDS: dict[str, tuple[Bounds, Options, Options]] = {
    "two beats": (TWO_BEATS, calm(), calm()),
    "two losses": (TWO_LOSSES, calm(), calm()),
    "acknowledge each message": (LARGE, calm(ack_messages=1), calm(ack_messages=1)),
    "full after one message": (LARGE, calm(), calm(send_buffer_messages=1)),
    "newcomers win": (LARGE, calm(), calm(newcomer_wins=True)),
    "the server resumes nothing": (LARGE, calm(), calm(transparent_reconnect=False)),
    "nothing is resumed": (
        LARGE,
        calm(transparent_reconnect=False),
        calm(transparent_reconnect=False),
    ),
}


def explore_apart(name: str) -> Explored:
    """Explore a world in a process of its own."""
    root = Path(wsmux.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", __name__, name],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{CHECKOUT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Explored(*json.loads(done.stdout))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(explore(World(*WORLDS[sys.argv[1]]), MOST)))
