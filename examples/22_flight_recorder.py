"""Keep the last frames of connections, read what happened, and replay it against a handler."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import wsmux

APP = """
def shout(stream): stream.write(stream.readall().upper())
def whisper(stream): stream.write(stream.readall().lower())
"""


def shout(stream: wsmux.Stream) -> None:
    stream.write(stream.readall().upper())


def run(directory: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "wsmux", *arguments]
    return subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True).stdout


with tempfile.TemporaryDirectory() as directory:
    Path(directory, "app.py").write_text(APP)
    # What ends abnormally leaves a file; without ``payload`` it has the heads of frames only.
    config = wsmux.Config(recording=wsmux.Recording(payload=1_000_000, to=directory))
    server = wsmux.serve(stream_handler=shout, config=config)
    with server, wsmux.connect(server.url) as client, client.open_stream() as stream:
        stream.write(b"Hello")
        stream.close_write()
        stream.readall()
        client.close(code=4000, reason="I am cross")

    (file,) = (path.name for path in Path(directory).glob("wsmux-recording-*.jsonl"))
    for line in run(directory, "inspect", file).splitlines()[1:]:
        print(line if line.startswith("#") else " ".join(line.split()[1:]))  # without the time
    for handler in ("app:shout", "app:whisper"):
        print(run(directory, "replay", file, "--stream-handler", handler), end="")

# Output:
# # ConnectionClosedError: connection closed by the peer with code 4000 (private use): I am cross
# < 0 ACK credit 262144
# > 0 ACK credit 262144
# < 0 DATA length 5
# < 0 CLOSE read
# > 0 CLOSE write
# > 0 DATA length 5
# > 0 CLOSE read
# < 0 CLOSE write
# < - CARRIER_CLOSE code 4000 I am cross
# > - CARRIER_CLOSE code 4000
# frames fed: 5; streams: 1; differences: 0
# stream 0: byte 0 differs from the recorded one
# frames fed: 5; streams: 1; differences: 1
