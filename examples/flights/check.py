"""Compare what came of flights in two ways, group by group; needs neither Spark nor pandas.

A group is an airport, an hour of the day and a kind of weather, or less of these. What is known of
it are whole numbers, so that equal means equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "DELAYS",
    "DISTANCES",
    "SKIES",
    "Groups",
    "checksum",
    "differences",
    "groups_of",
    "mean_delays",
]

# The columns that name a group, and those that are compared.
DELAYS = (
    ("origin", "hour", "sky"),
    ("flights", "departed", "delay", "seats", "strangers", "checksum"),
)
DISTANCES = (("origin",), ("flights", "unplaced", "km"))

# Kinds of weather, from good to bad; the last is none at all.
SKIES = ("fair", "wind", "poor sight", "rain", "no report")

Columns = tuple[tuple[str, ...], tuple[str, ...]]
Key = tuple[str | int, ...]
Groups = dict[Key, tuple[int, ...]]

# Sentences about one comparison; more would not be read.
MOST = 10


def groups_of(columns: Columns, rows: Iterable[Mapping[str, object]]) -> Groups:
    """Return groups, of rows with their columns by name."""
    names, compared = columns
    groups: Groups = {}
    for row in rows:
        key = tuple(value if isinstance(value := row[n], int) else str(value) for n in names)
        values = [row[name] for name in compared]
        if key in groups:
            raise ValueError(f"{_named(key)} comes twice")
        for name, value in zip(compared, values, strict=True):
            if not isinstance(value, int):
                raise ValueError(f"{name} of {_named(key)} is {value!r}, no whole number")
        groups[key] = tuple(value for value in values if isinstance(value, int))
    return groups


def differences(what: str, columns: Columns, found: Groups, expected: Groups) -> list[str]:
    """Return a sentence for each difference; no more than ten, and how many are left out."""
    told = []
    for key in sorted(found.keys() | expected.keys(), key=repr):
        if key not in found:
            told.append(f"{what}: {_named(key)} is missing")
        elif key not in expected:
            told.append(f"{what}: {_named(key)} is there, and pandas knows nothing of it")
        else:
            told += [
                f"{what}: {name} of {_named(key)} is {here}, and {there} by pandas"
                for name, here, there in zip(columns[1], found[key], expected[key], strict=True)
                if here != there
            ]
    more = len(told) - MOST
    return [*told[:MOST], f"{what}: {more} further differences"] if more > 0 else told


def checksum(groups: Groups) -> str:
    """Return what the checksums of all rows come to, whatever their order."""
    place = DELAYS[1].index("checksum")
    return f"{sum(values[place] for values in groups.values()) % 2**64:016x}"


def mean_delays(groups: Groups, by: Sequence[str]) -> dict[Key, float]:
    """Return the mean delay of departures in minutes, by some of the columns that name groups."""
    places = [DELAYS[0].index(name) for name in by]
    departed, delay = DELAYS[1].index("departed"), DELAYS[1].index("delay")
    sums: dict[Key, tuple[int, int]] = {}
    for key, values in groups.items():
        part = tuple(key[place] for place in places)
        flights, minutes = sums.get(part, (0, 0))
        sums[part] = flights + values[departed], minutes + values[delay]
    return {part: minutes / flights for part, (flights, minutes) in sums.items() if flights}


def _named(key: Key) -> str:
    return "/".join(map(str, key))
