"""Offer what the npm client produced, and what follows from the rules of the known relay.

``npm`` in the file was made by running the published package with fixed keys, time, ids and
nonces; ``computed`` was worked out from the rules. Its clock says ``NOW``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.keys import Identity

__all__ = ["COMPUTED", "NOW", "NPM", "PEOPLE", "TWINS", "identity", "rows"]

VECTORS = json.loads((Path(__file__).parent / "vectors" / "rmb.json").read_text())
NPM: dict[str, Any] = VECTORS["npm"]
COMPUTED: dict[str, Any] = VECTORS["computed"]
NOW: int = VECTORS["about"]["clock"]

PEOPLE: dict[str, dict[str, Any]] = {person["name"]: person for person in NPM["identities"]}

TWINS = {
    person["id"]: Twin(
        person["id"],
        bytes.fromhex(person["account_hex"]),
        (person["relay"],),
        bytes.fromhex(person["pk"][2:]) if person["pk"] else None,
    )
    for person in PEOPLE.values()
}


@cache
def identity(name: str) -> Identity:
    """Return the keys of one of the people: alice, bob, carol, dave and erin, twins 1 to 5."""
    return Identity.from_secret(PEOPLE[name]["secret"], PEOPLE[name]["keyType"])


def rows(items: list[dict[str, Any]], name: str) -> list[Any]:
    """Return one parameter a row, named by one of its members."""
    return [pytest.param(item, id=str(item[name]).replace(" ", "-")[:60]) for item in items]
