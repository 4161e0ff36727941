"""What the entries of a Delta log add up to. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from wsmux.spark.store.base import Committed
from wsmux.spark.tables.actions import (
    TableState,
    Torn,
    add_action,
    check_readable,
    commit_info,
    entry_text,
    parse_entry,
    protocol_for,
    remove_action,
)

pytestmark = pytest.mark.spark

PLAIN = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def metadata(schema: str = "s", **more: Any) -> dict[str, Any]:
    return {"metaData": {"id": "table", "schemaString": schema, "partitionColumns": [], **more}}


def column(kind: Any, *rules: str, name: str = "c") -> str:
    """Return a schema of one column, which has rules in its metadata."""
    field = {"name": name, "type": kind, "metadata": dict.fromkeys(rules, 1)}
    return json.dumps({"type": "struct", "fields": [field]})


STRUCT = json.loads(column("long", "delta.identity.start"))


def add(path: str, modified: int = 0, **more: Any) -> dict[str, Any]:
    action = add_action(path, 10, modified, '{"numRecords":3}')
    action["add"] |= more
    return action


def told(key: str, seconds: float = 0.0, rows: int = 3) -> dict[str, Any]:
    return commit_info("WRITE", "Append", int(seconds * 1000), "test", txn=key, rows=rows, bytes=7)


def state_of(*entries: list[dict[str, Any]]) -> TableState:
    state = TableState()
    for version, actions in enumerate(entries):
        state.apply(version, actions)
    return state


def paths(state: TableState, version: int) -> list[str]:
    return [file.path for file in state.snapshot(version)]


def test_versions_hold_what_was_there_in_the_order_of_commits() -> None:
    state = state_of([PLAIN, metadata(), add("b", 1)], [add("a", 2)])
    state.apply(2, [remove_action(file, 5000) for file in state.live.values()] + [add("c", 3)])
    assert [paths(state, version) for version in range(3)] == [["b"], ["b", "a"], ["c"]]
    assert (state.version, state.ident, state.modified) == (2, "table", 3)
    assert state.snapshot(0)[0].rows == 3
    assert state.holds("a")
    assert not state.holds("d")


def test_a_transaction_and_an_app_are_known_by_their_entry() -> None:
    app = {"txn": {"appId": "etl", "version": 4}}
    state = state_of(
        [PLAIN, metadata(), told("k", 8.0), app], [{"txn": {"appId": "x", "version": 1}}]
    )
    assert state.txns["k"].made == Committed(0, 3, 7)
    assert state.txns["k"].time == 8.0
    assert state.apps == {"etl": (4, "k"), "x": (1, None)}


def test_schemas_belong_to_versions() -> None:
    state = state_of([PLAIN, metadata("s")], [metadata("s")], [metadata("t")])
    assert [state.schema(version) for version in range(3)] == ["s", "s", "t"]


def test_what_was_removed_long_ago_is_let_go() -> None:
    state = state_of([PLAIN, metadata("s"), told("old", 1.0), add("a")])
    state.apply(
        1, [remove_action(state.live["a"], 10_000), metadata("t"), add("b"), told("new", 10)]
    )
    assert state.forget(10.0) == []
    assert set(state.txns) == {"new"}
    assert state.forget(10.1) == ["a"]
    assert (state.oldest, state.gone, state.schemas) == (1, [], [(1, "t")])


def test_a_file_that_came_back_is_not_let_go() -> None:
    state = state_of([PLAIN, metadata(), add("a")])
    state.apply(1, [remove_action(state.live["a"], 0)])
    state.apply(2, [add("a")])
    assert state.forget(1.0) == []
    assert paths(state, 2) == ["a"]


def test_the_last_transaction_of_an_app_is_not_forgotten() -> None:
    app = {"txn": {"appId": "etl", "version": 4}}
    state = state_of([PLAIN, metadata(), told("k", 1.0), app], [told("l", 1.0)])
    state.forget(100.0)
    assert set(state.txns) == {"k"}


def test_what_was_added_before_the_oldest_entry_is_known_by_its_removal() -> None:
    before = state_of([PLAIN, metadata(), add("old", 5), add("older", 4)]).live.values()
    state = TableState(version=6, oldest=7, schemas=[(7, "s")])
    state.apply(7, [add("new", 9)])
    state.apply(8, [remove_action(file, 0) for file in before])
    assert (paths(state, 7), paths(state, 8)) == (["older", "old", "new"], ["new"])
    assert state.snapshot(7)[0].rows is None
    foreign = remove_action(next(iter(before)), 0)
    del foreign["remove"]["tags"]
    state.apply(9, [foreign])
    assert state.oldest == 9, "where its rows stood is not known"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("interval 1000 seconds", 1000),
        ("INTERVAL 2 Weeks", 14 * 86_400),
        ("1 hour", 3600),
        ("for ever", math.inf),
        ("interval 1 month", math.inf),
        (None, 7 * 86_400),
    ],
)
def test_a_table_tells_how_long_removed_files_are_kept(told: Any, seconds: float) -> None:
    configuration = {"delta.deletedFileRetentionDuration": told} if told else {}
    assert state_of([metadata(configuration=configuration)]).removed_age == seconds


def test_names_are_quoted() -> None:
    state = state_of([PLAIN, metadata(), add("a b/é%20.parquet")])
    assert paths(state, 0) == ["a b/é%20.parquet"]


def test_a_file_is_removed_by_the_letters_of_its_adding() -> None:
    """Others compare them, and quote less than is quoted here."""
    foreign, raw = add("x"), "a+b%20(1).parquet"
    foreign["add"]["path"] = raw
    state = state_of([PLAIN, metadata(), foreign])
    assert paths(state, 0) == ["a+b (1).parquet"]
    removal = remove_action(state.live["a+b (1).parquet"], 0)
    assert removal["remove"]["path"] == raw
    later = TableState(version=0, oldest=0, schemas=[(0, "s")])
    later.apply(1, [removal])
    assert [(file.path, file.raw) for file in later.gone] == [("a+b (1).parquet", raw)]


def test_statistics_of_a_file_may_change() -> None:
    state = state_of([PLAIN, metadata(), add("a")], [add("a", stats=None, dataChange=False)])
    assert (state.live["a"].added, state.live["a"].rows) == (0, None)


def test_what_was_removed_is_let_go_in_the_time_of_its_files() -> None:
    """Not of their square: a table of a minute's streams has many."""
    count = 4000
    state = state_of([PLAIN, metadata(), told("k"), *(add(str(each)) for each in range(count))])
    state.apply(1, [told("l"), *(remove_action(file, 0) for file in state.live.values())])
    compared = 0

    class Path(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other) is True

    assert all(state.holds(Path(each)) for each in range(count))
    assert len(state.forget(1.0)) == count
    assert compared <= 2 * count
    assert not state.holds("1")


def test_an_entry_that_tells_no_time_is_as_old_as_its_file() -> None:
    state = state_of([PLAIN, metadata(), told("k", 5.0)])
    state.apply(1, [add("a")], 8.0)
    state.apply(2, [{"commitInfo": {"operation": "WRITE"}}, add("b")], 9.0)
    state.apply(3, [told("l", 11.0), add("c")], 30.0)
    found = [state.version_at(time) for time in (4.0, 6.0, 8.5, 9.0, 12.0)]
    assert found == [None, 0, 1, 2, 3]


# Text


ENTRY = entry_text([told("k"), {"txn": {"appId": "é", "version": 1}}, add("a"), add("b")])


def test_an_entry_is_read_back() -> None:
    actions = parse_entry(ENTRY)
    assert [next(iter(each)) for each in actions] == ["commitInfo", "txn", "add", "add"]
    assert actions[0]["commitInfo"]["wsmux"]["actions"] == 4


@pytest.mark.parametrize("size", range(len(ENTRY) - 1))
def test_an_entry_that_is_cut_is_told(size: int) -> None:
    with pytest.raises(Torn, match="it is not whole"):
        parse_entry(ENTRY[:size])


@pytest.mark.parametrize("size", range(0, len(ENTRY), 7))
def test_an_entry_that_ends_in_zeros_is_told(size: int) -> None:
    with pytest.raises(Torn, match="it is not whole"):
        parse_entry(ENTRY[:size] + bytes(len(ENTRY) - size))


def test_entries_of_others_are_read() -> None:
    assert parse_entry(json.dumps(add("a")).encode()) == [add("a")]
    assert parse_entry(b'{"commitInfo":{"wsmux":7}}\n\n') == [{"commitInfo": {"wsmux": 7}}]
    with pytest.raises(Torn):
        parse_entry(b"7")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\t \n"])
def test_the_lines_of_other_writers_end_where_those_of_json_do(end: str) -> None:
    """A text may hold what ends lines elsewhere, and half of a pair of surrogates."""
    texts = ("a\u2028b\x85c\x7f", "\ud800", "\u2029")
    actions = [metadata(each) for each in texts]
    text = end.join(json.dumps(each, ensure_ascii=False) for each in actions)
    assert parse_entry(text.encode("utf-8", "surrogatepass")) == actions


# Protocols


def test_timestamps_without_a_zone_need_a_feature() -> None:
    assert protocol_for(False) == PLAIN
    asked = protocol_for(True)
    assert asked is not None
    assert asked["protocol"]["readerFeatures"] == ["timestampNtz"]
    assert protocol_for(False, PLAIN["protocol"]) is None
    assert protocol_for(True, asked["protocol"]) is None
    raised = protocol_for(True, PLAIN["protocol"])
    assert raised is not None
    assert raised["protocol"]["writerFeatures"] == ["appendOnly", "invariants", "timestampNtz"]
    rows = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}
    more = protocol_for(True, rows)
    assert more is not None
    assert more["protocol"]["writerFeatures"] == ["appendOnly", "timestampNtz"]


def test_what_is_not_known_is_not_read() -> None:
    check_readable({"minReaderVersion": 3, "readerFeatures": ["timestampNtz"]})
    with pytest.raises(ValueError, match="deletionVectors, which is not known"):
        check_readable({"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]})
    with pytest.raises(ValueError, match="reader version 2"):
        check_readable({"minReaderVersion": 2})
    with pytest.raises(ValueError, match="deletion vectors"):
        state_of([add("a", deletionVector={"storageType": "u"})])


@pytest.mark.parametrize(
    ("actions", "mode", "why"),
    [
        ([PLAIN, metadata()], "append", None),
        ([PLAIN, metadata(column("date"), partitionColumns=["c"])], "append", None),
        ([PLAIN, metadata(column("decimal(5,2)"), partitionColumns=["c"])], "append", None),
        ([PLAIN, metadata(column("binary"), partitionColumns=["c"])], "append", "c of type binary"),
        ([PLAIN, metadata(column("date"), partitionColumns=["y"])], "append", "y of type no type"),
        ([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}, metadata()], "append", "4"),
        (
            [
                {
                    "protocol": {
                        "minReaderVersion": 1,
                        "minWriterVersion": 7,
                        "writerFeatures": ["rowTracking", "appendOnly"],
                    }
                },
                metadata(),
            ],
            "append",
            "features rowTracking",
        ),
        ([PLAIN, metadata(column("x", "delta.invariants"))], "append", "delta.invariants"),
        (
            [PLAIN, metadata(column({"type": "array", "elementType": STRUCT}))],
            "append",
            "delta.identity.start",
        ),
        ([PLAIN, metadata(column({"type": "map", "valueType": STRUCT}))], "append", "identity"),
        ([PLAIN, metadata(column("string", name="delta.identity"))], "append", None),
        ([PLAIN, metadata('{"delta.identity')], "append", "cannot be read"),
        ([PLAIN, metadata(configuration={"delta.appendOnly": "true"})], "append", None),
        ([PLAIN, metadata(configuration={"delta.appendOnly": "true"})], "overwrite", "append-only"),
    ],
)
def test_what_cannot_be_written_to(actions: Any, mode: str, why: str | None) -> None:
    told = state_of(actions).why_read_only(mode)
    assert told is None if why is None else why in str(told)
