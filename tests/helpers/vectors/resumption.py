"""Each message of a resumable connection, byte for byte, computed without this package.

The JSON names the fields of each, so that peers in other languages can be held against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["MESSAGES", "Vector"]

Vector = dict[str, Any]

PATH = Path(__file__).parent / "resumption_vectors.json"

MESSAGES: list[Vector] = json.loads(PATH.read_text(encoding="utf-8"))["messages"]
