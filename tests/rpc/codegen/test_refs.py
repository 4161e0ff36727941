"""What references of a served schema lead to, for the code generator."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc.codegen.refs import find, resource_of

INNER: dict[str, Any] = {
    "$id": "inner",
    "$defs": {"x": {"type": "string"}},
    "items": {"$ref": "#/$defs/x"},
}
ROOT: dict[str, Any] = {
    "$defs": {"x": {"type": "null"}, "inner": INNER, "a/b~ c": {"$anchor": "here"}, "no": False},
    "required": ["x"],
    "anyOf": [{"type": "number"}],
}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("x", ROOT["$defs"]["x"]),
        ("inner", INNER),
        ("inner#/$defs/x", INNER["$defs"]["x"]),
        ("#/$defs/no", False),
        ("#/$defs/a~1b~0%20c", {"$anchor": "here"}),
        ("#here", {"$anchor": "here"}),
        ("#/anyOf/0", {"type": "number"}),
    ],
)
def test_a_reference_is_a_name_a_pointer_or_an_anchor(reference: str, found: Any) -> None:
    assert find(ROOT, ROOT, reference)[0] == found


def test_a_fragment_belongs_to_the_nearest_id() -> None:
    assert find(ROOT, resource_of(INNER, ROOT), "#/$defs/x") == ({"type": "string"}, INNER)
    assert find(ROOT, resource_of({}, ROOT), "#/$defs/inner/$defs/x") == ({"type": "string"}, INNER)


@pytest.mark.parametrize(
    "reference",
    ["other.json", "https://example.com/a", "#/no", "#/required/x", "#/required/0", "#anchor"],
)
def test_a_reference_to_elsewhere_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="refers to no schema in this document"):
        find(ROOT, ROOT, reference)
