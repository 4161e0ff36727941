"""Make messages that are no JSON of River's, each with the sentence that refuses it."""

from __future__ import annotations

from collections.abc import Iterator

from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.values import MAX_DIGITS

from .codec_messages import FIELDS, Bad, around, bad_fields, json_of

__all__ = ["FIELDS_TABLE", "TABLE", "depth", "syntax", "typed"]

SYNTAX = "a message must be JSON"
DEEP = "nests deeper than max_depth"
BASE64 = "$t must be padded base64"
DECIMAL = "a bigint must be decimal text"
DEEPEST = 10**5


def syntax() -> Iterator[Bad]:
    good = json_of(FIELDS)
    for kind, data in {
        "nothing": b"",
        "space": b" ",
        "words": b"bad handshake",
        "msgpack": b"\x81\xa7payload\x01",
        "nul": b"\0",
        "cut": good[:-1],
        "cut_in_a_string": good[:9],
        "brace_behind": good + b"}",
        "comma_behind": good + b",",
        "nul_behind": good + b"\0",
        "two_messages": good + good,
        "no_break_space_before": "\u00a0".encode() + good,
        "byte_order_mark": b"\xef\xbb\xbf" + good,
        "utf_16": good.decode().encode("utf-16"),
        "single_quotes": good.replace(b'"', b"'"),
        "trailing_comma": good[:-1] + b",}",
        "comment": good[:-1] + b"/**/}",
        "bare_key": b'{id:"i1"}',
        "number_as_key": b'{1:"i1"}',
        "missing_colon": b'{"id" "i1"}',
        "missing_comma": b'{"id":"i1" "to":"SERVER"}',
        "capital_true": b'{"payload":True}',
        "undefined": b'{"payload":undefined}',
    }.items():
        yield Bad(kind, data, SYNTAX)
    for kind, data in {
        "unfinished_array": b"[1",
        "wrong_bracket": b"[1}",
        "brackets_that_close_first": b"]" * DEEPEST + b"[" * DEEPEST,
        "brackets_that_do_not_match": b"[}" * DEEPEST,
        "bad_escape": rb'"\x"',
        "short_escape": rb'"\u12"',
        "backslash_at_the_end": b'"\\',
        "raw_newline": b'"\n"',
        "raw_nul": b'"\0"',
        "invalid_utf_8": b'"\xff"',
        "cut_utf_8": b'"\xe2\x82"',
        "overlong_utf_8": b'"\xc0\xaf"',
        "surrogate_in_utf_8": b'"\xed\xa0\x80"',
        "leading_zero": b"01",
        "plus": b"+1",
        "point_first": b".5",
        "point_last": b"5.",
        "hexadecimal": b"0x10",
        "bigint_literal": b"5n",
        "nan": b"NaN",
        "infinity": b"Infinity",
        "minus_infinity": b"-Infinity",
        "nan_in_an_array": b"[1.5,NaN]",
        "overflow": b"1e400",
        "negative_overflow": b"-1e400",
        "overflow_by_digits": b"1" * 400 + b".5",
        "overflow_beside_bytes": b'[{"$t":""},1e400]',
        "million_digits": b"1" * 10**6,
        "million_digits_beside_bytes": b'[{"$t":""},' + b"1" * 10**6 + b"]",
        "minus_million_digits": b"-" + b"1" * 10**6,
    }.items():
        yield Bad(kind, around(JsonCodec, data), SYNTAX)


def depth() -> Iterator[Bad]:
    for kind, data in {
        "arrays": b"[" * 101 + b"]" * 101,
        "objects": b'{"a":' * 101 + b"1" + b"}" * 101,
        "arrays_100_000": b"[" * DEEPEST + b"]" * DEEPEST,
        "objects_100_000": b'{"a":' * DEEPEST + b"1" + b"}" * DEEPEST,
        "both_100_000": b'[{"a":' * DEEPEST + b"1" + b"}]" * DEEPEST,
        "bytes_at_the_bottom": b"[" * 100 + b'{"$t":""}' + b"]" * 100,
        "closed_in_strings": b'["]",' * DEEPEST + b"1" + b"]" * DEEPEST,
        "closed_behind_escaped_quotes": rb'["\"]",' * DEEPEST + b"1" + b"]" * DEEPEST,
        "closed_behind_backslashes": rb'["\\","]",' * DEEPEST + b"1" + b"]" * DEEPEST,
        "never_closed": b"[" * DEEPEST,
        "objects_never_closed": b'{"":' * DEEPEST,
        "closed_wrongly": b"[" * DEEPEST + b"}" * DEEPEST,
        "unfinished_string_within": b"[" * DEEPEST + b'"' + b"]" * DEEPEST,
    }.items():
        yield Bad(kind, around(JsonCodec, data), DEEP)
    yield Bad("bare_arrays_100_000", b"[" * DEEPEST + b"]" * DEEPEST, DEEP)
    yield Bad(
        "unknown_field", json_of(FIELDS)[:-1] + b',"x":' + b"[" * 101 + b"]" * 101 + b"}", DEEP
    )


def typed() -> Iterator[Bad]:
    for kind, value in {
        "null": b"null",
        "number": b"1",
        "true": b"true",
        "array": b"[]",
        "object": b"{}",
        "not_padded": b'"QQ"',
        "padded_by_one": b'"QQ="',
        "too_much_padding": b'"QQ==="',
        "only_padding": b'"===="',
        "padding_first": b'"=QQ="',
        "padding_within": b'"Q=Q="',
        "one_letter": b'"Q"',
        "five_letters": b'"QUJDR"',
        "behind_padding": b'"QQ==QQ=="',
        "newline": rb'"QQ==\n"',
        "space": b'"Q Q="',
        "url_alphabet": b'"-_-_"',
        "no_ascii": '"Äpfel"'.encode(),
        "lone_surrogate": rb'"\ud800QQ="',
        "nested": b'{"$t":"QQ=="}',
    }.items():
        yield Bad(f"$t-{kind}", around(JsonCodec, b'{"$t":' + value + b"}"), BASE64)
    for kind, value in {
        "null": b"null",
        "number": b"5",
        "true": b"true",
        "array": b"[]",
        "object": b"{}",
        "empty": b'""',
        "minus": b'"-"',
        "plus": b'"+5"',
        "space": b'" 5"',
        "newline": rb'"5\n"',
        "underscore": b'"1_000"',
        "hexadecimal": b'"0x10"',
        "fraction": b'"1.5"',
        "exponent": b'"1e5"',
        "suffix": b'"5n"',
        "arabic_digits": '"٥"'.encode(),
        "too_long": b'"' + b"1" * (MAX_DIGITS + 1) + b'"',
        "million_digits": b'"' + b"1" * 10**6 + b'"',
        "nested": b'{"$b":"5"}',
    }.items():
        yield Bad(f"$b-{kind}", around(JsonCodec, b'{"$b":' + value + b"}"), DECIMAL)
    yield Bad("$t-before-$b", around(JsonCodec, b'{"$b":"5","$t":"!"}'), BASE64)
    yield Bad("$t-escaped", around(JsonCodec, rb'{"\u0024t":"!"}'), BASE64)
    yield Bad("$t-all-escaped", around(JsonCodec, rb'{"\u0024\u0074":"!"}'), BASE64)
    bad = json_of(FIELDS | {"unknown": {"$b": ""}})
    yield Bad("$b-in-an-unknown-field", bad, DECIMAL)


FIELDS_TABLE = list(bad_fields(json_of, {"bytes": {"$t": "QQ=="}, "bigint": {"$b": "1"}}))
TABLE = [*FIELDS_TABLE, *syntax(), *depth(), *typed()]
