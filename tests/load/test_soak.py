"""Do everything at once for minutes, with cuts and new connections; nothing may grow."""

from __future__ import annotations

from statistics import median

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import run
from ..helpers.load.soak import COLUMNS
from ..helpers.wires import NAMES

SECONDS, ROWS = 600, 20

# Growth of the resident set that counts as none; threads, descriptors and blocks that come and go.
FLAT_MB, STEADY, BLOCKS = 4.0, 12, 3000


def test_a_moment_of_everything_goes_wrong_nowhere() -> None:
    figures = run("soak", "wsmux", 0.3, 1)
    assert not figures["wrong"]
    assert figures["done"]["echo"]


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_ten_minutes_of_everything_leave_all_flat(protocol: str, tell: Tell) -> None:
    figures = run("soak", protocol, SECONDS, ROWS, limit=SECONDS + 120)
    rows = figures["rows"]
    tell(f"{protocol}: {figures['connected']} connections, {figures['done']}")
    for row in (COLUMNS, *rows):
        tell("".join(f"{cell:>12}" for cell in row))
    assert not figures["wrong"]
    early, late = rows[1 : ROWS // 4], rows[-ROWS // 4 :]
    for column, allowed in ((1, FLAT_MB), (2, FLAT_MB), (3, STEADY), (4, STEADY), (5, BLOCKS)):
        grown = median(row[column] for row in late) - median(row[column] for row in early)
        assert grown <= allowed, COLUMNS[column]
