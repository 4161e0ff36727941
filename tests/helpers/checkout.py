"""Read what lies in the checkout beside the package: examples, and what the extras require."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def expected_output(source: str) -> str:
    comment = source.rpartition("# Output:\n")[2]
    return "".join(line.removeprefix("# ") for line in comment.splitlines(keepends=True))


def extras() -> dict[str, list[str]]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    section = parser["options.extras_require"]
    return {name: text.strip().splitlines() for name, text in section.items()}


def requirements(extra: str) -> list[str]:
    """Return what an extra requires, with what stands in those it refers to."""
    found = []
    for line in extras()[extra]:
        reference = re.fullmatch(r"wsmux-streams\[(.+)\]", line)
        named = [] if reference is None else reference[1].split(",")
        found += [each for name in named for each in requirements(name)] or [line]
    return found
