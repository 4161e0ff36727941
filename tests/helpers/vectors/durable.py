"""Each frame of a durable stream, byte for byte, computed without this package.

The JSON names the fields of each, and what is not allowed after what, so that peers in other
languages can be held against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["FRAMES", "ILLEGAL", "Vector"]

Vector = dict[str, Any]

PATH = Path(__file__).parent / "durable_vectors.json"

_READ = json.loads(PATH.read_text(encoding="utf-8"))
FRAMES: list[Vector] = _READ["frames"]
ILLEGAL: list[Vector] = _READ["illegal"]
