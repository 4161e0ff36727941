"""What clients and the data server tell each other, and every way to get it wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import (
    MAX_HEADER,
    MAX_WHOLE,
    RangeToken,
    Receipt,
    Request,
    TxnId,
    check_name,
    encode_line,
    parse_line,
    receipts_of,
)

from ..helpers.tables import each_case

KEY = "0123456789abcdef" * 2
FILE = "p3-1-0123456789abcdef.parquet"
RECEIPT = {"partition": 3, "attempt": 1, "rows": 5, "bytes": 7, "crc": 9, "file": FILE}

BAD_NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "slash": "a/b",
    "climbing": "../a",
    "absolute": "/etc",
    "backslash": "a\\b",
    "nul": "a\0b",
    "newline": "a\n",
    "space": "a b",
    "accent": "é",
    "digit": "\u0661",
    "surrogate": "\udc80",
    "129": "a" * 129,
    "number": 7,
    "nothing": None,
}


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "...", ".x", "a" * 128])
def test_a_name_of_the_rule_is_taken(name: str) -> None:
    assert check_name(name, "dataset") == name


@each_case
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(RiverError) as caught:
        check_name(name, "topic")
    assert caught.value.code == "BAD_NAME"
    assert "topic" in caught.value.message
    assert len(caught.value.message) < 300


# Lines


def test_a_line_comes_back() -> None:
    values = {"stream": "read", "n": 1, "text": "é\n"}
    line = encode_line(values)
    assert line.count(b"\n") == 1
    assert parse_line(line) == values


BAD_LINES = {
    "cut": b'{"stream":"read"}',
    "empty": b"",
    "endless": b"x" * MAX_HEADER,
    "no json": b"hello\n",
    "no object": b"[]\n",
    "no utf-8": b'{"\xff":1}\n',
    "nan": b'{"a":NaN}\n',
    "deep": b"[" * 30_000 + b"\n",
    "digits": b'{"a":' + b"9" * 5000 + b"}\n",
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_wrong_line_is_refused(line: bytes) -> None:
    with pytest.raises(RiverError) as caught:
        parse_line(line)
    assert caught.value.code == "BAD_HEADER"


def test_a_long_line_and_a_cut_one_are_told_apart() -> None:
    with pytest.raises(RiverError, match="65536 bytes passed"):
        parse_line(b"x" * MAX_HEADER)
    with pytest.raises(RiverError, match="the stream ended"):
        parse_line(b"x")


# Fields

WRONG_FIELDS: dict[str, tuple[str, Any]] = {
    "text missing": ("text", None),
    "text number": ("text", 1),
    "text surrogate": ("text", "\udc80"),
    "whole missing": ("whole", None),
    "whole text": ("whole", "1"),
    "whole float": ("whole", 1.0),
    "whole truth": ("whole", True),
    "whole negative": ("whole", -1),
    "whole large": ("whole", MAX_WHOLE + 1),
    "raw missing": ("raw", None),
    "raw text": ("raw", "a"),
    "texts number": ("texts", [1]),
    "texts text": ("texts", "ab"),
    "wholes missing": ("wholes", None),
    "wholes text": ("wholes", ["a"]),
}


@each_case
@pytest.mark.parametrize(("method", "value"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_wrong_field_is_named(method: str, value: Any) -> None:
    request = Request({} if value is None else {"field": value})
    with pytest.raises(RiverError) as caught:
        getattr(request, method)("field")
    assert caught.value.code == "BAD_REQUEST"
    assert caught.value.message.startswith("field ")


def test_right_fields_are_taken() -> None:
    values = {"t": "x", "w": 3, "r": b"r", "ts": ["a"], "ws": [1, 2]}
    request = Request(values)
    assert request.text("t") == "x"
    assert request.whole("w", least=3) == 3
    assert request.whole("missing", 4) == 4
    assert request.raw("r") == b"r"
    assert request.texts("ts") == ["a"]
    assert request.texts("missing") is None
    assert request.wholes("ws") == [1, 2]
    assert "t" in request
    assert "missing" not in request


# Transactions and tokens


@pytest.mark.parametrize("key", [KEY, f"{KEY}-17"])
def test_the_id_of_a_transaction_comes_back(key: str) -> None:
    txn = TxnId("d", "orders.2024", key)
    assert TxnId.parse(str(txn), "d") == txn


@pytest.mark.parametrize(
    "text", ["", "d:a", f"t:a:{KEY}", f"d:..:{KEY}", f"d:a/b:{KEY}", f"d:a:{KEY}\n", "d:a:../../x"]
)
def test_no_other_id_is_a_transaction(text: str) -> None:
    with pytest.raises(RiverError) as caught:
        TxnId.parse(text, "d")
    assert caught.value.code == "NO_TXN"


def test_a_token_comes_back() -> None:
    token = RangeToken("a-b", "00ff00ff", 3, 0, 10)
    assert RangeToken.parse(str(token)) == token


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:00ff00ff:1:5:4", "..:00ff00ff:1:0:1", "a:00ff00ff:1:0", "a:00ff00ff:1:-1:0"],
)
def test_no_other_text_is_a_token(text: str) -> None:
    with pytest.raises(RiverError) as caught:
        RangeToken.parse(text)
    assert caught.value.code == "BAD_TOKEN"


# Receipts


def test_receipts_come_back_by_their_partitions() -> None:
    two = RECEIPT | {"partition": 2, "ok": True}
    assert [receipt.partition for receipt in receipts_of([RECEIPT, two])] == [2, 3]
    assert Receipt.of(json.loads(json.dumps(RECEIPT))).to_json() == RECEIPT


@each_case
@pytest.mark.parametrize(
    "receipts",
    [
        None,
        "receipts",
        {"a": 1},
        [None],
        [{}],
        [RECEIPT | {"rows": -1}],
        [RECEIPT | {"crc": "9"}],
        [RECEIPT | {"file": "../../etc/passwd"}],
        [RECEIPT | {"file": "txn.json"}],
        [RECEIPT, RECEIPT | {"attempt": 2}],
    ],
    ids=str,
)
def test_wrong_receipts_are_refused(receipts: object) -> None:
    with pytest.raises(RiverError) as caught:
        receipts_of(receipts)
    assert caught.value.code == "WRONG_RECEIPT"


@pytest.mark.parametrize("field", ["partition", "attempt", "rows", "bytes", "crc", "file"])
def test_a_receipt_is_compared_field_by_field(field: str) -> None:
    staged = Receipt.of(RECEIPT)
    staged.check(staged)
    changed = RECEIPT | {field: "p4-1-0123456789abcdef.arrow" if field == "file" else 99}
    with pytest.raises(RiverError, match=f"{field} is") as caught:
        Receipt.of(changed).check(staged)
    assert caught.value.code == "WRONG_RECEIPT"


def test_a_receipt_of_nothing_staged_is_refused() -> None:
    with pytest.raises(RiverError, match="has staged no"):
        Receipt.of(RECEIPT).check(None)
