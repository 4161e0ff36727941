"""Draw docs/streams.svg: four streams and the one socket that carries them, from a real recording.

Run it from the checkout: ``python docs/picture.py``. A client and a server talk over a path of
4 MB/s each way; what is drawn are the frames that the client's flight recorder kept.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import wsmux
from wsmux.testing import FaultProxy, Faults

SECONDS = 0.4  # what the picture shows
WIDTH, LEFT, LANE, GAP = 860, 150, 34, 12  # pixels

CAPTION = (
    "Each bar is a frame, as wide as it takes. The slow reader stops its own writer and nobody "
    "else; pings go before bulk."
)

# The streams by their names, with their colours.
LANES = {
    "upload": "#3f51b5",
    "download": "#00897b",
    "slow reader": "#e65100",
    "pings": "#c2185b",
}


def serve(stream: wsmux.Stream) -> None:
    name = first_line(stream)
    if name == "upload":
        while stream.read(65536):
            pass
    elif name in ("download", "slow reader"):
        stream.write(bytes(1_500_000))
    else:
        while data := stream.read(100):
            stream.write(data)


def first_line(stream: wsmux.Stream) -> str:
    line = b""
    while not line.endswith(b"\n"):
        line += stream.read(1)
    return line.decode().strip()


def record() -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the frames of the run, and the names of the streams by their ids."""
    limits = Faults(rate=4_000_000, latency=0.005)
    config = wsmux.Config(recording=wsmux.Recording(frames=8192))
    with (
        wsmux.serve(stream_handler=serve) as server,
        FaultProxy(server.port, up=limits, down=limits) as proxy,
        wsmux.connect(proxy.url, config=config) as connection,
    ):
        streams = {name: connection.open_stream() for name in LANES}
        for name, stream in streams.items():
            stream.write(f"{name}\n".encode())

        def upload() -> None:
            streams["upload"].write(bytes(1_500_000))

        def download() -> None:
            while streams["download"].read(65536):
                pass

        for work in (upload, download):
            threading.Thread(target=work, daemon=True).start()
        end = time.monotonic() + 1.2 * SECONDS
        while time.monotonic() < end:  # nobody reads "slow reader": its window fills, and it waits
            streams["pings"].write(b"ping")
            streams["pings"].read(100)
            time.sleep(0.02)
        text = connection.dump_recording()
        names = {stream.id: name for name, stream in streams.items()}
        for stream in streams.values():
            stream.reset()
    return [json.loads(line) for line in text.splitlines()[1:]], names


def draw(frames: list[dict[str, Any]], names: dict[int, str]) -> str:
    """Return the picture as SVG."""
    data = [each for each in frames if each["type"] == "DATA" and each["stream"] in names]
    start = min(each["t"] for each in data)
    scale = (WIDTH - LEFT - 20) / SECONDS
    socket_top = 56 + len(LANES) * (LANE + GAP) + 14
    height = socket_top + 2 * (LANE + GAP) + 34
    shapes = []

    def bar(each: dict[str, Any], top: float, tall: float) -> str:
        x = LEFT + (each["t"] - start) * scale
        wide = max(
            1.5, min(each["size"] / 4_000_000 * scale, WIDTH - 16 - x)
        )  # no further than the lane
        colour = LANES[names[each["stream"]]]
        return (
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall}" fill="{colour}"/>'
        )

    def label(text: str, top: float, note: str = "") -> str:
        small = f'<tspan x="16" dy="13" class="note">{note}</tspan>' if note else ""
        return f'<text x="16" y="{top + (14 if note else 21)}">{text}{small}</text>'

    notes = {
        "upload": "1.5 MB, client writes",
        "download": "1.5 MB, server writes",
        "slow reader": "256 KiB, then it waits",
        "pings": "4 bytes, both ways",
    }
    for row, name in enumerate(LANES):
        top = 56 + row * (LANE + GAP)
        shapes += [
            f'<rect class="lane" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 16}" height="{LANE}"/>'
        ]
        shapes += [label(name, top, notes[name])]
        for each in data:
            if names[each["stream"]] == name and each["t"] - start < SECONDS:
                shapes.append(bar(each, top + 2, LANE - 4))
    for row, (way, text) in enumerate({"sent": "the socket, up", "received": "and down"}.items()):
        top = socket_top + row * (LANE + GAP)
        shapes += [
            f'<rect class="lane" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 16}" height="{LANE}"/>'
        ]
        shapes += [label(text, top)]
        ways = [each for each in data if each["dir"] == way and each["t"] - start < SECONDS]
        shapes += [
            bar(each, top + 2, LANE - 4) for each in sorted(ways, key=lambda each: -each["size"])
        ]
    body = "\n".join(shapes)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"
 aria-label="Frames of four streams over time, and the same frames on the one socket">
<style>
text {{ font: 600 14px sans-serif; fill: #263238 }}
.note {{ font: 400 11px sans-serif; fill: #607d8b }}
.lane {{ fill: #eceff1 }}
.page {{ fill: #ffffff }}
</style>
<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>
<text x="16" y="28">Four streams, one WebSocket: {SECONDS:g} s of a path with 4 MB/s each way</text>
{body}
<text class="note" x="{LEFT}" y="{height - 14}">{CAPTION}</text>
</svg>
"""


if __name__ == "__main__":
    Path(__file__).with_name("streams.svg").write_text(draw(*record()))
