"""Batch reads as they are planned. No session."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from wsmux.spark import SparkError
from wsmux.spark.source.batch_reader import reader_of, schema_of_source
from wsmux.spark.source.options import Action, parse_options

from ...helpers.spark.arrow_data import rows
from ...helpers.spark.format_servers import filled, opts, served

pytestmark = pytest.mark.spark


def planned(url: str, **options: Any) -> list[Any]:
    parsed = parse_options(opts(url, **options), Action.READ)
    return reader_of(parsed, schema_of_source(parsed)).partitions()


@pytest.mark.parametrize("option", ["minPartitions", "numPartitions"])
def test_more_ranges_than_a_server_can_tell_are_told_with_what_to_do(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a hundred thousand of a long name, which are more than a message of River takes."""

    def describe(name: str, partitions: int | None, *more: Any) -> Any:
        assert partitions is None or partitions <= 10
        return usual(name, partitions, *more)

    with served() as (server, store):
        filled(server.url, "d", [rows(0, 100)])
        usual = store.describe
        monkeypatch.setattr(store, "describe", describe)
        assert len(planned(server.url, **{option: 10})) == 10
        with pytest.raises(SparkError) as caught:
            planned(server.url, **{option: 100_000})
    error = caught.value
    assert (error.code, error.what) == ("UNCAUGHT_ERROR", "dataset.describe")
    assert f"it was asked for 100,000 ranges by the option {option}: ask for fewer" in error.message
    assert "write a dataset of many small files anew with coalesce(n)" in error.message


def test_what_is_no_matter_of_ranges_is_told_as_it_is() -> None:
    with served() as (server, _), pytest.raises(SparkError) as caught:
        planned(server.url, dataset="none", minPartitions=10)
    assert caught.value.code == "NO_DATASET"
