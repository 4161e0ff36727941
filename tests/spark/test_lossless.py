"""What pyarrow would change is recognised, and what is not is kept, alone or among others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.spark.lossless import UNFIT, Odd, array_of, odd_for

from ..helpers.examples import examples
from ..helpers.programs import package
from ..helpers.spark.arrow_data import pa

pytestmark = pytest.mark.spark
np = package("numpy", "spark")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(allow_nan=False),
    st.sampled_from([0.0, 1.0, 1.5, 7e4, 1e39]),
    st.text("ab", max_size=2),
    st.binary(max_size=2),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
)
FLAT = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text("ab", max_size=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("ms"): st.datetimes(),
}


KINDS = [
    *FLAT,
    pa.list_(pa.date32()),
    pa.list_(pa.list_(pa.int64())),
    pa.map_(pa.string(), pa.timestamp("us", "UTC")),
    pa.map_(pa.string(), pa.list_(pa.int64())),
    pa.struct([("a", pa.int64()), ("b", pa.float64())]),
    pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.timestamp("ms")))])),
]


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type, and others in their places now and then."""
    if pa.types.is_list(kind):
        usual: st.SearchStrategy[Any] = st.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        items = values_of(kind.item_type)
        pairs = st.lists(st.tuples(st.sampled_from("xy"), items), max_size=2)
        usual = st.one_of(pairs.map(dict), pairs)
    elif pa.types.is_struct(kind):
        within = {field.name: values_of(field.type) for field in kind}
        usual = st.one_of(st.fixed_dictionaries({}, optional=within), st.tuples(*within.values()))
    else:
        usual = FLAT[kind]
    return st.one_of(usual, SCALARS)


def is_true(question: Callable[[], bool]) -> bool:
    """Return the answer; what raises does not fit."""
    try:
        return question()
    except UNFIT:
        return True


def is_kept(value: Any, found: Any, kind: Any) -> bool:
    if value is None or found is None:
        return value is found
    if pa.types.is_list(kind):
        pairs = zip(value, found, strict=True)
        return all(is_kept(one, two, kind.value_type) for one, two in pairs)
    if pa.types.is_map(kind):
        given = list(value.items()) if isinstance(value, dict) else value
        pairs = zip(given, found, strict=True)
        return all(
            one[0] == two[0] and is_kept(one[1], two[1], kind.item_type) for one, two in pairs
        )
    if pa.types.is_struct(kind):
        if isinstance(value, tuple):
            value = {field.name: each for field, each in zip(kind, value, strict=True)}
        return all(is_kept(value.get(f.name), found[f.name], f.type) for f in kind)
    if isinstance(value, bytes):
        return value == found.encode()
    wanted = (int, float) if pa.types.is_floating(kind) else type(found)
    is_class = isinstance(value, wanted) and isinstance(value, bool) is isinstance(found, bool)
    if type(found) is date:
        is_class = is_class and not isinstance(value, datetime)
    return is_class and bool(value == found)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=examples(100))
@given(data=st.data())
def test_what_is_not_recognised_is_kept(kind: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(values_of(kind), min_size=5, max_size=20))
    odd = odd_for(kind)
    if odd is None:
        return
    recognised = [is_true(lambda value=value: odd(value)) for value in values]  # type: ignore[misc]
    assert is_true(lambda: odd.any(values)) is any(recognised)
    for value, is_odd in zip(values, recognised, strict=True):
        if is_odd or (isinstance(value, str) and not pa.types.is_string(kind)):
            continue  # text may stand for a date or a time
        try:
            (found,) = array_of([value], kind).to_pylist()
        except (*UNFIT, pa.ArrowException):
            continue  # pyarrow refuses it itself
        assert is_kept(value, found, kind)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.float64()), [[1.0, None], None, [2]]),
        (pa.list_(pa.string()), [["a"], None]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {}]),
    ],
)
def test_what_is_usual_is_not_looked_at_one_by_one(
    kind: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = odd_for(kind)
    assert odd is not None
    monkeypatch.setattr(odd, "_is_odd", None)  # what is called for each value
    assert not odd.any(values)


@pytest.mark.parametrize(
    ("kind", "made_of"),
    [
        (pa.float64(), "float64"),
        (pa.float32(), "float32"),
        (pa.float32(), "float64"),
        (pa.int64(), "int64"),
    ],
    ids=str,
)
def test_numbers_of_an_array_are_not_looked_at_one_by_one(
    kind: Any, made_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors that models make would take a thousand times as long as pyarrow takes for them."""
    odd, seen, look = odd_for(pa.list_(kind)), [], Odd.__call__

    def looked(self: Odd, value: Any) -> bool:
        seen.append(value)
        return look(self, value)

    monkeypatch.setattr(Odd, "__call__", looked)
    assert odd is not None
    assert not odd.any([np.ones(1000, made_of), np.zeros(1000, made_of)])
    assert [len(each) for each in seen] == [1000, 1000]
