"""Names, patterns, keys, and what nodes say of themselves."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.cluster.records import (
    CLOCK_SKEW,
    MAX_HOST,
    MAX_NAME,
    MAX_RECORD,
    TOKEN_LIFE,
    Node,
    NodeProcess,
    check_key,
    check_name,
    check_token,
    key_prefix,
    link_token,
    name_prefix,
    parse_node,
    parse_process,
    signed_node,
)

KEY, OTHER = b"k" * 16, b"o" * 16
NODE = Node("0123456789abcdef" * 2, "host", "/run/x.sock", "wss://10.0.0.5:7000")
NOW = 1_000_000.0


@pytest.mark.parametrize("name", ["user:42", "ü", "a b", "*a", "x" * MAX_NAME, "é" * 128])
def test_a_name_is_kept(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "1 to 256 bytes"),
        ("x" * (MAX_NAME + 1), "not 257"),
        ("é" * 129, "not 258"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("\ud800", "control characters"),
        ("user:*", "cannot end with"),
    ],
)
def test_what_is_no_name_is_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_name(name)


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError, match="a name must be a string, not int"):
        check_name(42)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "prefix", "longer"),
    [("*", "", True), ("user:*", "user:", True), ("user:42", "user:42", False)],
)
def test_a_pattern_is_a_name_or_the_beginning_of_some(
    pattern: str, prefix: str, longer: bool
) -> None:
    assert name_prefix(pattern) == (prefix, longer)


@pytest.mark.parametrize("pattern", ["", "a**", "a\n*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="a pattern"):
        name_prefix(pattern)


def test_a_pattern_is_text() -> None:
    with pytest.raises(TypeError, match="a pattern must be a string, not bytes"):
        name_prefix(b"*")  # type: ignore[arg-type]


@given(*[st.text(alphabet="ab:%5A", max_size=6)] * 2)
def test_the_namespace_of_a_key_can_be_told(namespace: str, key: str) -> None:
    whole = key_prefix(namespace) + key
    quoted, _, rest = whole.removeprefix("wsmux:cluster:").partition(":")
    assert (unquote(quoted), rest) == (namespace, key)


def test_a_namespace_without_a_colon_is_in_its_keys_as_it_is() -> None:
    assert key_prefix("shop") == "wsmux:cluster:shop:"


def test_a_key_is_long_enough() -> None:
    assert check_key(None) is None
    assert check_key("k" * 16) == check_key(b"k" * 16) == KEY
    with pytest.raises(ValueError, match="at least 16 bytes, not 15"):
        check_key("k" * 15)
    with pytest.raises(TypeError, match="not int"):
        check_key(16)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, KEY])
def test_a_record_comes_back(key: bytes | None) -> None:
    assert parse_node(signed_node(NODE, key), key) == NODE


@pytest.mark.parametrize("field", Node._fields)
def test_a_changed_record_is_not_believed(field: str) -> None:
    fields = json.loads(signed_node(NODE, KEY))
    fields[field] += "x"
    with pytest.raises(ValueError, match="not signed with this key"):
        parse_node(json.dumps(fields).encode(), KEY)


@pytest.mark.parametrize("key", [None, OTHER])
def test_a_record_without_this_key_is_not_believed(key: bytes | None) -> None:
    with pytest.raises(ValueError, match="not signed with this key"):
        parse_node(signed_node(NODE, key), KEY)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not of version"),
        (b'{"v": 2}', "not of version"),
        (b'{"v": 1, "id": "x", "host": "x", "path": 1, "url": ""}', "lacks a text"),
        (b" " * (MAX_RECORD + 1), "at most"),
    ],
)
def test_what_is_no_record_is_refused(record: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_node(record, None)


PROCESS = NodeProcess(4711, "web-1", 15.0)


@pytest.mark.parametrize("key", [None, KEY])
def test_the_process_of_a_record_comes_back(key: bytes | None) -> None:
    record = signed_node(NODE, key, PROCESS._replace(host="h" * (MAX_HOST + 1)))
    assert parse_node(record, key) == NODE
    assert parse_process(record, key) == PROCESS._replace(host="h" * MAX_HOST)


@pytest.mark.parametrize(
    "change",
    [
        {"process": None},
        {"process": [1, "web-1"]},
        {"process": ["1", "web-1", 15.0]},
        {"process": [1, "web-1", 0.0]},
        {"process": [1, "web-1", float("nan")]},
        {"process": [4712, "web-1", 15.0]},
        {"process_mac": None},
        {"process_mac": "x"},
        {"id": "f" * 32},
    ],
    ids=str,
)
def test_a_process_that_is_none_or_not_signed_is_unknown(change: dict[str, Any]) -> None:
    fields = json.loads(signed_node(NODE, KEY, PROCESS)) | change
    assert parse_process(json.dumps(fields).encode(), KEY) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match="the record"):
        parse_node(record, KEY)


def test_a_token_names_the_node_that_shows_it() -> None:
    token = link_token(KEY, "one", "two", NOW)
    for later in (0, TOKEN_LIFE, TOKEN_LIFE + CLOCK_SKEW, -CLOCK_SKEW):
        assert check_token(KEY, token, "two", NOW + later) == "one"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": OTHER}, "another key"),
        ({"target": "three"}, "another node"),
        ({"token": "one"}, "another key"),
        ({"token": ""}, "another key"),
        ({"token": "one.9999999999.00"}, "another key"),
        ({"token": "ö.\ud800.ü"}, "another key"),
        ({"now": NOW + TOKEN_LIFE + CLOCK_SKEW + 1}, "the clocks of two nodes"),
        ({"now": NOW - CLOCK_SKEW - 1}, "the clocks of two nodes"),
    ],
)
def test_another_token_is_refused(change: dict[str, Any], told: str) -> None:
    given = {"key": KEY, "token": link_token(KEY, "one", "two", NOW), "target": "two", "now": NOW}
    with pytest.raises(PermissionError, match=told):
        check_token(**(given | change))
