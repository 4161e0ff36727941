"""What is an option of ``format("wsmux")``, what it may be, and where it belongs. No Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from wsmux.spark import SparkError
from wsmux.spark.source.options import BAD_OPTION, Action, Options, parse_options

from ...helpers.tables import each_case

URL = "ws://127.0.0.1:8765"


def parsed(action: Action = Action.READ, **values: Any) -> Options:
    given = {"url": URL, **({} if values.keys() & {"dataset", "topic"} else {"dataset": "d"})}
    return parse_options(given | {name: str(each) for name, each in values.items()}, action)


def refusal(action: Action = Action.READ, **values: Any) -> str:
    with pytest.raises(SparkError) as caught:
        parsed(action, **values)
    assert caught.value.code == BAD_OPTION
    assert "\n" not in str(caught.value)
    return caught.value.message


def test_the_least_that_is_needed() -> None:
    assert parsed() == Options(action=Action.READ, url=URL, dataset="d")


def test_names_come_in_any_case_as_spark_gives_them() -> None:
    assert parsed(MINPARTITIONS=3) == parsed(minpartitions=3) == parsed(minPartitions=3)
    assert parsed(minPartitions=3).min_partitions == 3


def test_spark_s_own_options_are_left_to_it() -> None:
    assert parsed(checkpointLocation="/c") == parsed()


def test_a_table_that_would_lose_its_options_is_refused() -> None:
    message = refusal(Action.SCHEMA, provider="wsmux", owner="me", **{"option.url": URL})
    assert message.startswith("Spark forgets the options of CREATE TABLE; use CREATE TEMPORARY")


def test_every_option_of_a_batch_read() -> None:
    options = parsed(
        token="sesame",
        columns="a, b",
        pushdown="TRUE",
        numPartitions=4,
        batchRows=1000,
        window=65536,
        connectTimeout="2.5",
        callTimeout=7,
        retries=0,
        retryBackoff=0,
        **{"header.x-tenant": "blue"},
    )
    assert options == Options(
        action=Action.READ,
        url=URL,
        dataset="d",
        token="sesame",
        headers={"x-tenant": "blue"},
        columns=("a", "b"),
        pushdown=True,
        num_partitions=4,
        batch_rows=1000,
        window=65536,
        connect_timeout=2.5,
        call_timeout=7.0,
        retries=0,
        retry_backoff=0.0,
    )


def test_the_recipe_is_made_of_the_options() -> None:
    options = parsed(token="sesame", retries=7, callTimeout=5, **{"header.x-tenant": "blue"})
    recipe = options.recipe()
    assert (recipe.url, recipe.token, recipe.retries, recipe.call_timeout) == (URL, "sesame", 7, 5)
    assert recipe.headers == (("x-tenant", "blue"),)
    assert recipe == pickle.loads(pickle.dumps(options)).recipe()


def test_no_secret_is_shown() -> None:
    options = parse_options(
        {"url": f"{URL}/x?key=hidden", "dataset": "d", "token": "hidden", "header.k": "hidden"},
        Action.WRITE,
    )
    assert repr(options) == f"<Options of a batch write: dataset d at {URL}/x>"
    assert "hidden" not in repr(options.recipe())
    assert "hidden" not in refusal(token="hidden\nnewline")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a", ("a",)),
        (" a , b ", ("a", "b")),
        ('["a, b", "c"]', ("a, b", "c")),
    ],
)
def test_columns_are_named_with_commas_or_in_json(text: str, columns: tuple[str, ...]) -> None:
    assert parsed(columns=text).columns == columns


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("Earliest", "earliest"),
        ("latest", "latest"),
        ('{"0": 17, "2": -2, "3": -1}', {0: 17, 2: -2, 3: -1}),
        ('{"t": {"0": 17, "2": -2}}', {0: 17, 2: -2}),
    ],
)
def test_offsets_are_a_word_or_json(text: str, offsets: Any) -> None:
    assert parsed(topic="t", startingOffsets=text).starting_offsets == offsets
    assert parsed(topic="t", endingOffsets=text).ending_offsets == offsets


@pytest.mark.parametrize("value", ['{"u": {"0": 1}}', '{"t": {"0": 1}, "u": {"0": 1}}'])
def test_offsets_of_another_topic_are_refused(value: str) -> None:
    message = refusal(topic="t", startingOffsets=value)
    assert message.startswith("the option startingOffsets must be offsets of the topic t only, not")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0),
        ("1764230400123", 1764230400123),
        ("20261127", 1795737600000),
        ("1970-01-01T01:00:00.5", 3_600_500),
    ],
)
def test_a_timestamp_is_that_of_kafka_or_iso(text: str, moment: int) -> None:
    options = parsed(topic="t", startingTimestamp=text, endingTimestamp=text)
    assert (options.starting_timestamp, options.ending_timestamp) == (moment, moment)


@pytest.mark.parametrize("value", ["-1", "soon", "9" * 30, "1.5"])
def test_bad_timestamps_are_refused(value: str) -> None:
    message = refusal(topic="t", startingTimestamp=value)
    assert message.startswith("the option startingTimestamp must be a ")


def test_what_stands_for_rows_that_are_not_there_is_error_or_latest() -> None:
    given = {"topic": "t", "startingTimestamp": 1}
    assert parsed(**given).timestamp_strategy == "error"
    strategy = parsed(**given, startingOffsetsByTimestampStrategy="Latest").timestamp_strategy
    assert strategy == "latest"
    message = refusal(**given, startingOffsetsByTimestampStrategy="first")
    assert message.endswith("must be error or latest, not 'first'")


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    assert refusal(datset="x") == "there is no option 'datset'; did you mean dataset?"
    assert "did you mean maxRowsPerTrigger?" in refusal(maxRowPerTrigger=1)


def test_an_option_like_none_is_refused_with_all_there_are() -> None:
    message = refusal(xyzzy=1)
    assert message.startswith("there is no option 'xyzzy'; there are url, token, dataset,")
    assert message.endswith("retryBackoff")


@each_case
@pytest.mark.parametrize(
    ("action", "name", "value"),
    [
        (Action.READ, "maxRowsPerTrigger", 1),
        (Action.READ, "txnAppId", "a"),
        (Action.READ, "txnVersion", 1),
        (Action.READ, "mergeSchema", "true"),
        (Action.READ, "overwriteSchema", "true"),
        (Action.STREAM_WRITE, "partitionBy", "day"),
        (Action.WRITE, "versionAsOf", 1),
        (Action.STREAM_READ, "timestampAsOf", "2026-11-27"),
        (Action.WRITE, "columns", "a"),
        (Action.WRITE, "pushdown", "true"),
        (Action.STREAM_READ, "endingOffsets", "latest"),
        (Action.STREAM_READ, "numPartitions", 1),
        (Action.STREAM_WRITE, "startingOffsets", "latest"),
        (Action.STREAM_WRITE, "txnVersion", 1),
        (Action.STREAM_READ, "endingTimestamp", 1),
        (Action.STREAM_WRITE, "includeMetadata", "true"),
    ],
)
def test_what_does_not_belong_to_an_action_is_refused(
    action: Action, name: str, value: Any
) -> None:
    expected = f"the option {name} does not belong to {action.value}"
    assert refusal(action, topic="t", **{name: value}) == expected


def test_a_schema_takes_the_options_of_both_reads() -> None:
    options = parsed(Action.SCHEMA, topic="t", maxRowsPerTrigger=1, endingOffsets="latest")
    assert (options.max_rows, options.ending_offsets) == (1, "latest")


@each_case
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("dataset", "a/b", "1 to 128 of A-Z a-z 0-9 . _ -, but not . or .."),
        ("topic", "..", "1 to 128 of A-Z a-z 0-9 . _ -, but not . or .."),
        ("columns", "a,,b", "names separated by commas"),
        ("columns", "a,a", "each once"),
        ("columns", "[]", "or a JSON list of them"),
        ("columns", '["a", 1]', "or a JSON list of them"),
        ("columns", "[", "or a JSON list of them"),
        ("pushdown", "yes", "true or false"),
        ("minPartitions", "0", "a whole number from 1 to 100000"),
        ("minPartitions", "100001", "a whole number from 1 to 100000"),
        ("numPartitions", "2.5", "a whole number from 1 to 100000"),
        ("numPartitions", "٣", "a whole number from 1 to 100000"),
        ("batchRows", "9" * 30, "a whole number from 1 to 16777216"),
        ("retries", "-1", "a whole number from 0 to 1000"),
        ("window", "100", "a whole number from 16384 to 2147483648"),
        ("connectTimeout", "0", "a number of seconds above 0"),
        ("callTimeout", "nan", "a number of seconds above 0"),
        ("callTimeout", "inf", "a number of seconds above 0"),
        ("callTimeout", "soon", "a number of seconds above 0"),
        ("retryBackoff", "-1", "a number of seconds, 0 or more"),
        ("versionAsOf", "-1", "a whole number from 0 up"),
        ("timestampAsOf", "noon", "a time such as 2026-11-27"),
        ("timestampAsOf", "1969-12-31", "a time since 1970"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_expected(name: str, value: str, wanted: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"the option {name} must be ")
    assert wanted in message
    assert repr(value) in message


@each_case
@pytest.mark.parametrize(
    "value",
    [
        "soonest",
        "[1]",
        "{}",
        '{"t": {}}',
        '{"t": {"x": 1}}',
        '{"t": {"0": [1]}}',
        '{"a": 1}',
        '{"0": "1"}',
        '{"0": true}',
        '{"0": -3}',
        '{"-1": 0}',
    ],
)
def test_bad_offsets_are_refused(value: str) -> None:
    message = refusal(topic="t", startingOffsets=value)
    assert message.startswith("the option startingOffsets must be earliest, latest or JSON")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01.5", 1500),
        (" 1970-01-01 02:00:00+01:00 ", 3_600_000),
    ],
)
def test_a_time_is_in_utc_without_a_zone(text: str, moment: int) -> None:
    assert parsed(timestampAsOf=text).timestamp == moment


def test_a_long_value_is_cut() -> None:
    assert len(refusal(dataset="x" * 5000)) < 300


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the option url must be a non-empty string, not ''"),
        ("http://h", "expected a ws:// or wss:// URL, got 'http://h': write ws://"),
        ("ws://", "expected a ws:// or wss:// URL, got 'ws://', which has no host"),
        ("ws://user:word@h", "errors would show the user or password"),
    ],
)
def test_a_bad_address_is_refused(url: str, message: str) -> None:
    assert message in refusal(url=url)
    assert "word@" not in refusal(url=url)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SparkError, match="the option url is missing"):
        parse_options({"dataset": "d"}, Action.READ)
    with pytest.raises(SparkError, match="needs the option dataset or the option topic"):
        parse_options({"url": URL}, Action.READ)
    assert refusal(Action.STREAM_READ) == "a stream read needs the option topic"


@each_case
@pytest.mark.parametrize(
    ("action", "values", "message"),
    [
        (Action.READ, {"dataset": "d", "topic": "t"}, "dataset and topic exclude each other"),
        (Action.READ, {"minPartitions": 1, "numPartitions": 1}, "exclude each other"),
        (Action.READ, {"startingOffsets": "latest"}, "can only be used with the option topic"),
        (
            Action.READ,
            {"topic": "t", "pushdown": "true"},
            "can only be used with the option dataset",
        ),
        (
            Action.READ,
            {"dataset": "d", "versionAsOf": 1, "timestampAsOf": "2026-11-27"},
            "versionAsOf and timestampAsOf exclude each other",
        ),
        (
            Action.WRITE,
            {"topic": "t", "mergeSchema": "true"},
            "can only be used with the option dataset",
        ),
        (
            Action.READ,
            {"topic": "t", "startingOffsets": "latest", "startingTimestamp": 1},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        (
            Action.READ,
            {"topic": "t", "endingOffsets": "latest", "endingTimestamp": 1},
            "endingOffsets and endingTimestamp exclude each other",
        ),
        (
            Action.READ,
            {"topic": "t", "startingOffsetsByTimestampStrategy": "latest"},
            "needs the option startingTimestamp",
        ),
        (Action.READ, {"includeMetadata": "true"}, "can only be used with the option topic"),
        (Action.WRITE, {"txnAppId": "a"}, "the option txnAppId needs the option txnVersion"),
        (Action.WRITE, {"txnVersion": 1}, "the option txnVersion needs the option txnAppId"),
        (Action.READ, {"token": "a", "header.Authorization": "b"}, "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    action: Action, values: dict[str, Any], message: str
) -> None:
    assert message in refusal(action, **values)
