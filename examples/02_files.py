"""Use streams as files: copy, compress, read lines."""

from __future__ import annotations

import gzip
import io
import shutil

import wsmux


def shout(stream: wsmux.Stream) -> None:
    lines = stream.makefile("r", encoding="utf-8")
    with gzip.GzipFile(fileobj=stream, mode="wb") as packed:
        for line in lines:
            packed.write(line.upper().encode())
    stream.close_write()
    lines.read()


text = io.BytesIO(b"one\ntwo\nthree\n")

with (
    wsmux.serve(stream_handler=shout) as server,
    wsmux.connect(server.url) as connection,
    connection.open_stream() as stream,
):
    shutil.copyfileobj(text, stream)
    stream.close_write()
    with gzip.GzipFile(fileobj=stream.makefile("rb")) as unpacked:
        print(unpacked.read().decode(), end="")

# Output:
# ONE
# TWO
# THREE
