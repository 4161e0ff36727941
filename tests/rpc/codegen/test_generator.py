"""Typed clients written from served schemas, and what the usual tools say of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import wsmux.rpc.records
from wsmux.rpc.codegen.formatting import find_ruff, is_same_code
from wsmux.rpc.codegen.generator import Style, generate
from wsmux.rpc.codegen.types import MAX_SHAPES
from wsmux.rpc.errors import RiverError
from wsmux.rpc.schema.document import read_schema, serialize

from ...helpers.examples import examples
from ...helpers.rpc.generated import literal_error, loaded, telling_error
from ...helpers.rpc.published_service import published_service
from ...helpers.tables import each_case

HERE = Path(__file__).parent
RUFF = find_ruff()
STYLES = get_args(Style)
RULES = "E,F,W,I,B,UP,C4,G,PERF,PGH,RUF100,T20,SIM,PT"
STRING = {"type": "string"}


def one(name: str = "p", service: str = "s", **fields: Any) -> dict[str, Any]:
    """Return a server's schema with one procedure."""
    return {"services": {service: {"procedures": {name: {"type": "rpc", **fields}}}}}


def written(init: Any, style: Style = "typeddict", **options: Any) -> str:
    return generate(one(init=init), style=style, ruff=RUFF, **options)


def ruff(text: str, *arguments: str, place: Path | None = None) -> str:
    """Return what is wrong with a text, or with the files of a place."""
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", str(place or "-")]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stdout + run.stderr


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory where ``wsmux.rpc`` is what generated clients are written against."""
    place = tmp_path_factory.mktemp("stubs")
    package = place / "wsmux" / "rpc"
    package.mkdir(parents=True)
    (place / "wsmux" / "__init__.pyi").touch()
    shutil.copy(HERE / "client_stub.pyi", package / "__init__.pyi")
    shutil.copy(HERE / "errors_stub.pyi", package / "errors.pyi")
    shutil.copy(Path(wsmux.rpc.records.__file__), package / "records.py")
    return place


def mypy(stubs: Path, place: Path, *texts: str) -> str:
    for number, text in enumerate(texts):
        (place / f"m{number}.py").write_text(text)
    files = [f"m{number}.py" for number in range(len(texts))]
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(stubs / "cache")]
    config = stubs / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {stubs}\npython_version = 3.11\n")
    command += ["--config-file", str(config), *files]
    run = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stdout + run.stderr


# -- what is written -----------------------------------------------------------------------------

BASIC = '''"""Call River services.

Written by wsmux.rpc.codegen; what is changed here is lost when it is written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from wsmux.rpc import Abort, Client, StreamCall

__all__ = [
    "Cancel",
    "Files",
    "FilesReadError",
    "FilesReadErrorNotFound",
    "FilesReadErrorNotFoundExtras",
    "FilesReadInit",
    "FilesReadRequest",
    "FilesReadResponse",
    "InvalidRequest",
    "InvalidRequestExtras",
    "InvalidRequestExtrasFirstValidationErrorsItem",
    "ProtocolError",
    "UncaughtError",
    "UnexpectedDisconnect",
]


class Cancel(TypedDict):
    code: Literal["CANCEL"]
    message: str


class FilesReadErrorNotFound(TypedDict):
    code: Literal["NOT_FOUND"]
    extras: FilesReadErrorNotFoundExtras
    message: str


class FilesReadErrorNotFoundExtras(TypedDict):
    path: NotRequired[str]


class FilesReadInit(TypedDict):
    """What to read.

    Attributes:
        path: Below the root.
    """

    path: str
    size: NotRequired[int | None]


class InvalidRequest(TypedDict):
    code: Literal["INVALID_REQUEST"]
    extras: NotRequired[InvalidRequestExtras]
    message: str


class InvalidRequestExtras(TypedDict):
    firstValidationErrors: list[InvalidRequestExtrasFirstValidationErrorsItem]
    totalErrors: float


class InvalidRequestExtrasFirstValidationErrorsItem(TypedDict):
    message: str
    path: str


class UncaughtError(TypedDict):
    code: Literal["UNCAUGHT_ERROR"]
    message: str


class UnexpectedDisconnect(TypedDict):
    code: Literal["UNEXPECTED_DISCONNECT"]
    message: str


ProtocolError: TypeAlias = (
    UncaughtError | UnexpectedDisconnect | InvalidRequest | Cancel
)
FilesReadRequest: TypeAlias = Any
FilesReadResponse: TypeAlias = bytes
FilesReadError: TypeAlias = FilesReadErrorNotFound | ProtocolError


class Files:
    """Files of this machine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def read(
        self,
        init: FilesReadInit,
        timeout: float | None = None,
        abort: Abort | None = None,
    ) -> StreamCall[FilesReadRequest, FilesReadResponse]:
        """Read a file. Errors: NOT_FOUND."""
        return self._client.stream(
            "files",
            "read",
            init,
            timeout=timeout,
            abort=abort,
        )
'''


def test_a_module_from_head_to_foot() -> None:
    extras = {"type": "object", "properties": {"path": STRING}}
    not_found = literal_error("NOT_FOUND", extras=extras)
    not_found["required"].append("extras")
    size = {"anyOf": [{"type": "null"}, {"type": "integer"}]}
    init = {
        "type": "object",
        "description": "What to read.",
        "properties": {"size": size, "path": {**STRING, "description": "Below the root."}},
        "required": ["path"],
    }
    read = {
        "type": "stream",
        "init": init,
        "input": {},
        "output": {"type": "Uint8Array"},
        "errors": {"anyOf": [not_found]},
        "description": "Read a file.",
    }
    files = {"procedures": {"read": read}, "description": "Files of this machine."}
    schema = {"services": {"files": files}}
    assert generate(schema, ruff=RUFF) == BASIC
    assert generate(read_schema(schema), ruff=RUFF) == BASIC
    assert is_same_code(generate(schema), BASIC)


def test_nothing_served_is_an_empty_module() -> None:
    text = generate({"services": {}})
    assert text.endswith("\n\n__all__: list[str] = []\n")
    assert ruff(text, "format", "--check") == ""


def test_the_order_of_the_schema_does_not_matter() -> None:
    schema = serialize([published_service()])
    turned = {
        "services": {
            name: {"procedures": dict(reversed(service["procedures"].items()))}
            for name, service in reversed(schema["services"].items())
        }
    }
    for style in STYLES:
        assert generate(schema, style=style) == generate(turned, style=style)


@each_case
@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        (STRING, "str"),
        ({"type": "number"}, "float"),
        ({"type": "integer"}, "int"),
        ({"type": "bigint"}, "int"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": "undefined"}, "None"),
        ({"type": "Uint8Array"}, "bytes"),
        ({"type": "Date"}, "datetime"),
        ({"type": "symbol"}, "Any"),
        ({"type": 5}, "Any"),
        ({}, "Any"),
        (True, "Any"),
        (False, "Never"),
        ({"not": {}}, "Never"),
        ({"not": {"type": "null"}}, "Any"),
        ({"type": ["string", "null", "boolean"]}, "str | bool | None"),
        ({"const": "a", "type": "string"}, 'Literal["a"]'),
        ({"const": 1}, "Literal[1]"),
        ({"const": -(2**63)}, "Literal[-9223372036854775808]"),
        ({"const": -(2**63) - 1}, "int"),
        ({"const": 2**63}, "int"),
        ({"const": True}, "Literal[True]"),
        ({"const": None}, "None"),
        ({"const": 1.5}, "float"),
        ({"const": [1]}, "list[Any]"),
        ({"const": {"a": 1}}, "dict[Any]"),
        ({"enum": ["a", 1, None]}, 'Literal["a", 1] | None'),
        ({"enum": []}, "Never"),
        ({"anyOf": [{"const": "a"}, {"const": "b"}, {"const": "a"}]}, 'Literal["a", "b"]'),
        ({"oneOf": [STRING, {"anyOf": [{"type": "null"}, STRING]}]}, "str | None"),
        ({"anyOf": [STRING, {}]}, "Any"),
        ({"anyOf": [STRING, False]}, "str"),
        ({"type": "array", "items": STRING}, "list[str]"),
        ({"items": STRING}, "list[str]"),
        ({"type": "array"}, "list[Any]"),
        ({"prefixItems": [STRING, {"type": "null"}], "items": False}, "list[str | None]"),
        ({"items": [STRING], "additionalItems": {"type": "null"}}, "list[str | None]"),
        ({"items": [STRING], "maxItems": 1}, "list[str]"),
        ({"prefixItems": 5}, "list[Any]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "properties": {}}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": STRING}, "dict[str, str]"),
        ({"type": "object", "additionalProperties": False}, "dict[str, Any]"),
        ({"patternProperties": {"^(.*)$": STRING}}, "dict[str, str]"),
        (
            {"patternProperties": {"a": STRING}, "additionalProperties": {"type": "null"}},
            "dict[str, str | None]",
        ),
        ({"allOf": [STRING, {}, {"maxLength": 5}]}, "str"),
        ({"allOf": [STRING, {"type": "null"}]}, "Any"),
        ({"allOf": [{}, True]}, "Any"),
        ({"allOf": 5}, "Any"),
        ({"required": 5, "properties": 5}, "dict[str, Any]"),
    ],
)
def test_a_schema_as_a_type(schema: Any, type_: str) -> None:
    type_ = type_.replace("dict[Any]", "dict[str, Any]")
    assert f"\nSPInit: TypeAlias = {type_}\n" in written(schema)


def test_records_have_a_name_for_each_place() -> None:
    inner = {"type": "object", "properties": {"x": STRING}, "required": ["x"]}
    outer = {"properties": {"one": inner, "many-more": {"items": inner}}}
    text = written({"properties": {"a": outer}, "required": ["a"]})
    assert "class SPInit(TypedDict):\n    a: SPInitA\n" in text
    assert "class SPInitAManyMoreItem(TypedDict):\n    x: str\n" in text
    assert '        "many-more": NotRequired["list[SPInitAManyMoreItem]"],\n' in text


def test_branches_are_named_after_what_tells_them_apart() -> None:
    # Python, test_unknown_enum: "needsEnumObject"
    def branch(kind: Any) -> dict[str, Any]:
        return {"properties": {"$kind": kind, "value": STRING}, "required": ["$kind"]}

    text = written({"anyOf": [branch({"const": "in_first"}), branch(STRING), STRING]})
    assert "SPInit: TypeAlias = SPInitInFirst | SPInitOption2 | str\n" in text


def test_intersections_are_merged() -> None:
    def having(name: str, type_: Any = STRING) -> dict[str, Any]:
        return {"type": "object", "properties": {name: type_}, "required": [name]}

    schema = {"$defs": {"B": having("b")}, "allOf": [having("a"), {"$ref": "#/$defs/B"}, True]}
    assert "class SPInit(TypedDict):\n    a: str\n    b: str\n" in written(schema)
    branches = {"anyOf": [having("b"), having("c")], **having("a")}
    text = written(branches)
    assert "class SPInitOption2(TypedDict):\n    a: str\n    c: str\n" in text
    both = {"allOf": [having("a", {"minLength": 1}), having("a"), {"anyOf": [STRING, {}]}]}
    assert "SPInit: TypeAlias = Any\n" in written(both)
    agreeing = {"allOf": [having("a", {"minLength": 1}), having("a")]}
    assert "class SPInit(TypedDict):\n    a: str\n" in written(agreeing)


def test_an_intersection_of_too_many_branches_is_any() -> None:
    branch = {"anyOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}
    schema = {"allOf": [branch] * MAX_SHAPES.bit_length()}
    assert "SPInit: TypeAlias = Any\n" in written(schema)


def test_an_intersection_with_itself_is_any() -> None:
    schema = {"$defs": {"a": {"allOf": [{"$ref": "a"}, {"properties": {"x": True}}]}}}
    assert "\nSPInitA: TypeAlias = Any\n" in written({**schema, "$ref": "a"})


def test_recursive_types() -> None:
    # Python, test_recursive_types; e2e, "works with non-object schemas"
    tree = {"properties": {"children": {"items": {"$ref": "TreeNode"}}}, "required": ["children"]}
    assert "class SPInit(TypedDict):\n    children: list[SPInit]\n" in written(
        {"$id": "TreeNode", **tree}
    )
    text = written({"$defs": {"TreeNode": tree}, "$ref": "TreeNode"})
    assert "class SPInitTreeNode(TypedDict):\n    children: list[SPInitTreeNode]\n" in text
    assert "\nSPInit: TypeAlias = SPInitTreeNode\n" in text


def test_recursive_aliases_are_quoted_where_they_are_not_known_yet() -> None:
    branches = [STRING, {"items": {"$ref": "J"}}, {"additionalProperties": {"$ref": "K"}}]
    other = {"anyOf": [{"type": "null"}, {"$ref": "J"}]}
    text = written({"$defs": {"J": {"anyOf": branches}, "K": other}, "$ref": "J"})
    assert 'SPInitJ: TypeAlias = str | list["SPInitJ"] | dict[str, "SPInitK"]\n' in text
    assert "SPInitK: TypeAlias = SPInitJ | None\n" in text
    loaded(text)


@pytest.mark.parametrize("reference", ["https://example.com/x", "#/$defs/x", "#a"])
def test_a_reference_to_elsewhere_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="none is fetched"):
        written({"items": {"$ref": reference}})


def test_a_union_inside_of_a_circle_is_quoted_as_a_whole() -> None:
    schema = {"items": {"anyOf": [{"const": "a"}, {"$ref": "#"}, {"type": "Date"}]}}
    text = written(schema)
    assert """\nSPInit: TypeAlias = list["Literal['a'] | SPInit | datetime"]\n""" in text
    assert "from datetime import datetime\n" in text
    loaded(text)


def test_a_type_made_of_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="refer to themselves without going deeper: SPInit"):
        written({"anyOf": [STRING, {"$ref": "#"}]})


def test_a_schema_of_any_depth_is_refused_in_a_sentence() -> None:
    schema: Any = {}
    for _ in range(500):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        written(schema)


# -- errors --------------------------------------------------------------------------------------

PATH = {"properties": {"path": STRING}, "required": ["path"]}


def failing(**errors: list[dict[str, Any]]) -> Any:
    """Return a server's schema whose procedures declare these errors."""
    procedures = {name: {"type": "rpc", "errors": {"anyOf": each}} for name, each in errors.items()}
    return {"services": {"files": {"procedures": procedures}}}


def error_module(**errors: list[dict[str, Any]]) -> ModuleType:
    return loaded(generate(failing(**errors), style="dataclass"))


def test_errors_are_classes_to_catch() -> None:
    module = error_module(size=[telling_error("NOT_FOUND", PATH), literal_error("FULL")])
    assert module.Files.NotFound is module.FilesNotFound
    assert module.Files.Full is module.FilesFull
    for cls in (module.FilesNotFound, module.FilesFull, module.Cancel, module.InvalidRequest):
        assert issubclass(cls, RiverError)
        assert cls.__name__ in module.__all__
    assert get_args(module.FilesSizeError)[:2] == (module.FilesNotFound, module.FilesFull)


def test_procedures_that_declare_the_same_error_share_its_class() -> None:
    described = telling_error("NOT_FOUND", PATH) | {"description": "No such file."}
    module = error_module(read=[described], size=[telling_error("NOT_FOUND", PATH)])
    assert module.FilesNotFound.__doc__ == "No such file."
    assert get_args(module.FilesReadError) == get_args(module.FilesSizeError)


def test_procedures_that_declare_one_code_differently_have_a_class_each() -> None:
    module = error_module(read=[literal_error("ODD")], size=[telling_error("ODD", PATH)])
    assert module.Files.ReadOdd is module.FilesReadOdd
    assert module.Files.SizeOdd is module.FilesSizeOdd
    assert not hasattr(module.Files, "Odd")


def test_errors_of_any_name_hide_nothing() -> None:
    codes = ["Any", "int", "__init__", "a-b", "A_B", "404", "", "Files", "NotThere"]
    module = error_module(NotThere=[literal_error(code) for code in codes])
    names = [name for name, each in vars(module.Files).items() if isinstance(each, type)]
    assert names == ["AB", "AB2", "Any_", "Files_", "Init", "Int", "N404", "NotThere_", "Unnamed"]


def test_an_error_is_not_named_as_a_method_that_was_named_otherwise() -> None:
    """The method of "Literal" and the error have the same name to begin with."""
    module = error_module(Literal=[literal_error("Literal")])
    assert callable(module.Files.Literal_)
    assert not isinstance(module.Files.Literal_, type)
    assert issubclass(module.Files.Literal__2, RiverError)


def test_an_error_of_several_codes_is_one_class() -> None:
    error = literal_error("a")
    error["properties"]["code"] = {"enum": ["LOST", "GONE"]}
    text = generate(failing(size=[error]), style="dataclass")
    assert 'class FilesLost(RiverError):\n    code: Literal["LOST", "GONE"]\n' in text.replace(
        "'", '"'
    )


# -- names ---------------------------------------------------------------------------------------

STRANGE = [
    "class",
    "None",
    "a-b",
    "a b",
    "$kind",
    "__x",
    "_y",
    "",
    "1",
    "str",
    "Any",
    "field",
    "日本",
    'q"',
]


def test_typed_dicts_with_any_names() -> None:
    # Python, "Handles special characters in input field names for TypedDict"
    for wire in STRANGE:
        module = loaded(written({"properties": {wire: STRING}, "required": [wire]}))
        assert list(module.SPInit.__annotations__) == [wire]


def test_dataclasses_with_any_names() -> None:
    # Python, "Handles special characters in input field names for BaseModel"
    fields = dict.fromkeys([*STRANGE, "a_b", "a.b"], STRING)
    module = loaded(written({"properties": fields, "required": list(fields)}, "dataclass"))
    names = {
        each.metadata.get("wire", each.name): each.name
        for each in module.SPInit.__dataclass_fields__.values()
    }
    assert names.keys() == fields.keys()
    assert names["日本"] == "日本"
    # Colliding ones are numbered in the order of the alphabet; the one that is a name keeps it.
    assert [names[wire] for wire in ("a_b", "a b", "a-b", "a.b")] == [
        "a_b",
        "a_b_2",
        "a_b_3",
        "a_b_4",
    ]
    assert [names[wire] for wire in ("class", "str", "1", "$kind", "__x", "field")] == [
        "class_",
        "str",
        "n1",
        "kind",
        "x",
        "field_",
    ]


def test_methods_of_any_name() -> None:
    names = ["__init__", "__class__", "toString", "str", "def", "a-b", "a b", "a_b", "S", ""]
    procedures = {name: {"type": "rpc"} for name in names}
    schema = {"services": {"s": {"procedures": procedures}}}
    module = loaded(generate(schema))
    assert sorted(name for name in vars(module.S) if not name.startswith("__")) == [
        "S_",
        "a_b",
        "a_b_2",
        "a_b_3",
        "class_",
        "def_",
        "init",
        "str",
        "toString",
        "unnamed",
    ]


def test_each_method_calls_its_procedure() -> None:
    procedures = {
        "a": {"type": "rpc"},
        "class": {"type": "subscription"},
        'q"': {"type": "upload"},
        "日": {"type": "stream"},
    }
    schema = {"services": {"my service": {"procedures": procedures}}}
    module = loaded(generate(schema))

    class Client:
        def __getattr__(self, kind: str) -> Any:
            return lambda *arguments, **options: (kind, *arguments, *options.values())

    service = module.MyService(Client())
    assert service.a(1) == ("rpc", "my service", "a", 1, None, None)
    assert service.class_(1, 5) == ("subscribe", "my service", "class", 1, 5, None)
    assert service.q(1, abort=6) == ("upload", "my service", 'q"', 1, None, 6)
    assert service.日(1, timeout=2) == ("stream", "my service", "日", 1, 2, None)


def test_types_that_would_have_one_name_are_numbered() -> None:
    services = {
        name: {"procedures": {"p": {"type": "rpc", "init": STRING}}}
        for name in ("any", "a-b", "a b", "Client", "cancel", "123", "int")
    }
    module = loaded(generate({"services": services}))
    classes = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
    for name in ("Any2", "AB", "AB2", "Client2", "Cancel", "Cancel2", "N123", "Int"):
        assert name in classes
    assert module.AB2PInit is str


@pytest.mark.parametrize(
    ("text", "name"),
    [("ﬁle", "FilePInit"), ("é²", "É2PInit"), ("²", "N2PInit"), ("\ud800", "UnnamedPInit")]
    + [("\U00010107", "UnnamedPInit"), ("x\U00010107", "XPInit"), ("NOT_FOUND", "NotFoundPInit")],
)
def test_names_are_what_python_makes_of_them(text: str, name: str) -> None:
    assert hasattr(loaded(generate(one(service=text))), name)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("wire", ["l", "NotRequired", "µ", "__x"])
def test_ruff_leaves_names_that_cannot_be_others(wire: str, style: Style) -> None:
    text = written({"properties": {wire: STRING}}, style)
    assert ruff(text, "check", "--select", RULES) == ""


# -- other people's texts ------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "text",
    [
        '"""',
        'ends with "',
        "ends with \\",
        "\\N{x} \\u12",
        "line\nbreaks\r\nand\ttabs\x00\x7f\u2028",
        "word " * 60,
        "longword" * 30,
        "# type: ignore # noqa # fmt: off",
        "   ",
    ],
)
def test_descriptions_cannot_break_out(style: Style, text: str) -> None:
    field = {"type": "string", "description": text}
    init = {"properties": {"a": field, "b-c": field}, "description": text}
    schema = one(init=init, description=text)
    schema["services"]["s"]["description"] = text
    source = generate(schema, style=style, ruff=RUFF)
    loaded(source)
    assert ruff(source, "format", "--check") == ""
    assert is_same_code(generate(schema, style=style), source)


@each_case
@pytest.mark.parametrize(
    "text", ["'", '"', "'\"", "\\", "\n", "\x00", "é", "😀", "\ud800", "a" * 90]
)
def test_literals_of_any_text(text: str) -> None:
    schema = {"properties": {text: {"const": text}}, "required": [text]}
    init = {"anyOf": [schema, {"const": text}, {"const": f"{text}2"}]}
    source = written(init)
    module = loaded(source.encode("utf-8", "surrogatepass").decode("utf-8"))
    literal, record = get_args(module.SPInit)
    assert get_args(literal) == (text, f"{text}2")
    assert list(record.__annotations__) == [text]
    assert ruff(source, "format", "--check") == ""
    assert is_same_code(generate(one(init=init)), source)


# -- tools ---------------------------------------------------------------------------------------

LONG = "aNameThatIsRatherLongButFits"
RICH: dict[str, Any] = {
    "handshakeSchema": {"type": "object", "properties": {"token": STRING}, "required": ["token"]},
    "services": {
        "rich": {
            "description": "Everything at once.",
            "procedures": {
                "talk": {
                    "type": "stream",
                    "init": {"items": {"anyOf": [STRING, {"properties": {"k": {"enum": [1]}}}]}},
                    "input": {
                        "$defs": {
                            "J": {
                                "anyOf": [
                                    STRING,
                                    {"items": {"$ref": "J"}},
                                    {"additionalProperties": {"$ref": "J"}},
                                ]
                            }
                        },
                        "$ref": "J",
                    },
                    "output": {"properties": {"a-b": {"type": "Date"}, "s": {"const": 'q"'}}},
                    "errors": {"anyOf": [literal_error("FULL"), literal_error("GONE")]},
                },
                "send": {"type": "upload", "init": {}, "input": STRING, "output": {"type": "null"}},
                "watch": {"type": "subscription", "init": False, "output": {"type": "Uint8Array"}},
                "class": {
                    "type": "rpc",
                    "init": {"properties": {"str": STRING, "l": STRING}, "required": ["l"]},
                    "output": {
                        "anyOf": [
                            {"properties": {"ok": {"const": True}}, "required": ["ok"]},
                            {"properties": {"ok": {"const": False}}, "required": ["ok"]},
                        ]
                    },
                },
            },
        },
        LONG: {
            "procedures": {
                LONG: {
                    "type": "upload",
                    "init": {"properties": {"x": {"enum": ["v" * 20 + str(n) for n in range(9)]}}},
                    "input": {"items": {"items": {"properties": {"a": STRING}}}},
                    "output": {
                        "additionalProperties": {
                            "anyOf": [{"properties": {f"p{n}": STRING}} for n in range(4)]
                        }
                    },
                }
            }
        },
    },
}
SCHEMAS = {"rich": RICH, "upstream": serialize([published_service()], {"type": "string"})}


@each_case
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [60, 88, 100, 120])
def test_ruff_has_nothing_to_add(schema: Any, style: Style, length: int) -> None:
    text = generate(schema, style=style, line_length=length, ruff=RUFF)
    assert ruff(text, "format", "--check", "--diff", "--line-length", str(length)) == ""
    assert ruff(text, "check", "--select", RULES, "--line-length", str(length)) == ""
    loaded(text)


@each_case
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [60, 88, 100, 120])
def test_without_ruff_the_code_is_the_same(schema: Any, style: Style, length: int) -> None:
    text = generate(schema, style=style, line_length=length)
    assert is_same_code(text, generate(schema, style=style, line_length=length, ruff=RUFF))
    assert ruff(text, "check", "--select", RULES, "--line-length", str(length)) == ""
    loaded(text)


def test_layout_and_comments_are_no_code() -> None:
    assert is_same_code("f(1,2)  # so\n", "f(\n    1,\n    2,\n)\n")
    assert is_same_code('def f():\n    """Do."""\n', 'def f():\n    """Do.\n    """\n')
    assert not is_same_code("f(1)\n", "f(2)\n")
    assert not is_same_code('"""Do."""\n', '"""Undo."""\n')
    with pytest.raises(SyntaxError):
        is_same_code("f(\n", "f()\n")


def test_a_ruff_that_fails_is_told_of(tmp_path: Path) -> None:
    broken = tmp_path / "ruff"
    with pytest.raises(FileNotFoundError, match=str(broken)):
        generate(RICH, ruff=str(broken))
    broken.write_text("#!/bin/sh\ncat >/dev/null; echo 'no such command' >&2; exit 2\n")
    broken.chmod(0o755)
    with pytest.raises(OSError, match="did not format the client: no such command"):
        generate(RICH, ruff=str(broken))


@pytest.mark.parametrize("style", STYLES)
def test_long_lines_are_broken_where_they_can_be(style: Style) -> None:
    text = generate(SCHEMAS["rich"], style=style, line_length=120, ruff=RUFF)
    assert max(map(len, text.splitlines())) <= 120
    assert "E501" not in text
    lines = generate(SCHEMAS["rich"], style=style, line_length=60, ruff=RUFF)
    assert lines.startswith("# ruff: noqa: E501")


def test_mypy_is_strict_and_content(stubs: Path, tmp_path: Path) -> None:
    texts = [generate(schema, style=style) for schema in SCHEMAS.values() for style in STYLES]
    assert mypy(stubs, tmp_path, *texts) == ""


USE = """
from typing import assert_type
from wsmux.rpc import Client, StreamCall, Subscription, Upload
from m0 import *

def use(client: Client) -> None:
    files = Files(client)
    assert_type(files.add({"n": 1}), FilesAddResponse)
    files.add({"n": 1})["result"].is_integer()
    assert_type(files.watch(None), Subscription[FilesWatchResponse])
    assert_type(files.total({}), Upload[FilesTotalRequest, FilesTotalResponse])
    with files.echo({}) as call:
        assert_type(call, StreamCall[FilesEchoRequest, FilesEchoResponse])
        call.write("text")
        call.close_write()
        call.read(timeout=1.0).decode()
        for response in call:
            response.decode()
        call.cancel("enough")
"""
USED = {
    "services": {
        "files": {
            "procedures": {
                "add": {
                    "type": "rpc",
                    "init": {"properties": {"n": {"type": "number"}}, "required": ["n"]},
                    "output": {
                        "properties": {"result": {"type": "number"}},
                        "required": ["result"],
                    },
                    "errors": {
                        "anyOf": [
                            telling_error(
                                "NOT_FOUND", {"properties": {"path": STRING}, "required": ["path"]}
                            ),
                            telling_error(
                                "FULL", {"properties": {"size": {"type": "integer"}}}, always=False
                            ),
                        ]
                    },
                },
                "watch": {"type": "subscription", "init": {"type": "null"}, "output": STRING},
                "total": {"type": "upload", "init": {}, "input": STRING, "output": STRING},
                "echo": {"type": "stream", "input": STRING, "output": {"type": "Uint8Array"}},
            }
        }
    }
}


def test_mypy_knows_the_types_of_calls(stubs: Path, tmp_path: Path) -> None:
    assert mypy(stubs, tmp_path, generate(USED), USE) == ""


USE_DATACLASSES = """
from typing import assert_type
from wsmux.rpc import Abort, Client
from wsmux.rpc.errors import RiverError
from wsmux.rpc.records import TypedStreamCall, TypedSubscription, TypedUpload
from m0 import *

def use(client: Client) -> None:
    files = Files(client)
    assert_type(files.add(FilesAddInit(n=1), timeout=5.0), FilesAddResponse)
    abort = Abort()
    with files.watch(None, timeout=60.0, abort=abort) as watched:
        assert_type(watched, TypedSubscription[FilesWatchResponse])
        assert_type(watched.read(1.0), str)
        watched.cancel("enough")
    with files.total({}) as upload:
        assert_type(upload, TypedUpload[FilesTotalRequest, FilesTotalResponse])
        upload.write("text", timeout=1.0)
        upload.close_write()
        assert_type(upload.finish(timeout=1.0), str)
    with files.echo({}) as call:
        assert_type(call, TypedStreamCall[FilesEchoRequest, FilesEchoResponse])
        call.write("text", 1.0)
        call.close_write()
        assert_type(call.read(timeout=1.0), bytes)
        for response in call:
            response.decode()
        call.cancel()
    try:
        files.add(FilesAddInit(n=1))
    except files.NotFound as error:
        assert_type(error, FilesNotFound)
        assert_type(error.extra.path, str)
    except Files.Full as error:
        assert_type(error.extra, FilesFullExtras | None)
    except InvalidRequest as error:
        assert_type(error.extra, InvalidRequestExtras | None)
    except RiverError as error:
        assert_type(error.code, str)
"""


def test_mypy_knows_the_types_of_calls_with_dataclasses(stubs: Path, tmp_path: Path) -> None:
    assert mypy(stubs, tmp_path, generate(USED, style="dataclass"), USE_DATACLASSES) == ""


WRONG = {
    'files.add({"m": 1})': "typeddict-item|Missing key|Extra key",
    'files.add({"n": "1"})': "typeddict-item",
    "files.echo({}).write(5)": "arg-type",
    "files.missing()": "attr-defined",
}


def test_mypy_finds_wrong_calls(stubs: Path, tmp_path: Path) -> None:
    uses = "".join(f"    {wrong}\n" for wrong in WRONG)
    found = mypy(stubs, tmp_path, generate(USED), USE + uses)
    for line, complaint in enumerate(WRONG.values(), USE.count("\n") + 1):
        assert re.search(rf"m1.py:{line}: error: .*({complaint})", found), found


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="style must be"):
        generate(RICH, style="pydantic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 60"):
        generate(RICH, line_length=59)
    with pytest.raises(ValueError, match="must be JSON"):
        generate("{")


# -- properties ----------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["a", "b", "class", "a-b", "A", "str", "dict", "list", "Any", "items", "Literal", "x" * 40]
) | st.text(max_size=5)
NOTES = st.none() | st.text(max_size=20)
LEAVES = st.sampled_from(
    [STRING, {"type": "number"}, {"type": "Date"}, {"type": "null"}, {}, True, False]
) | st.one_of(WORDS, st.integers(), st.none(), st.booleans()).map(lambda value: {"const": value})
REFERENCES = st.sampled_from([{"$ref": "x"}, {"$ref": "y"}, {"$ref": "#"}])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=4)
    described = st.fixed_dictionaries(
        {"properties": st.dictionaries(WORDS, inner, max_size=4)},
        optional={
            "type": st.just("object"),
            "required": st.lists(WORDS, max_size=2),
            "description": NOTES,
            "anyOf": several,
        },
    )
    return st.one_of(
        described,
        several.map(lambda branches: {"anyOf": branches}),
        several.map(lambda branches: {"allOf": branches}),
        inner.map(lambda items: {"items": items}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
        st.lists(WORDS, min_size=1, max_size=6).map(lambda values: {"enum": values}),
    )


TYPES = st.recursive(LEAVES | REFERENCES, containers, max_leaves=10)


def whole(type_: Any, first: Any, second: Any) -> dict[str, Any]:
    definitions = {"x": {"$id": "x", "items": first}, "y": {"$id": "y", "items": second}}
    return {"$defs": definitions, "items": type_}


DOCUMENTS = st.builds(whole, TYPES, TYPES, TYPES)
CODES = st.sampled_from(["NOT_FOUND", "not found", "Any", "__init__", "s", ""]) | WORDS
EXTRAS = DOCUMENTS.map(lambda document: {"$id": "extras", **document})  # which "#" means
ERRORS = st.builds(literal_error, CODES) | st.builds(
    telling_error, CODES, EXTRAS, always=st.booleans()
)
PROCEDURES = st.fixed_dictionaries(
    {"type": st.sampled_from(["rpc", "upload", "subscription", "stream"]), "init": DOCUMENTS},
    optional={
        "input": DOCUMENTS,
        "output": DOCUMENTS,
        "description": NOTES,
        "errors": st.lists(ERRORS, max_size=3).map(lambda errors: {"anyOf": errors}),
    },
)
SERVICES = st.fixed_dictionaries({"procedures": st.dictionaries(WORDS, PROCEDURES, max_size=2)})
SERVERS = st.fixed_dictionaries({"services": st.dictionaries(WORDS, SERVICES, max_size=2)})


def attempt(server: Any, style: Style, length: int = 88, ruff: str | None = None) -> str:
    try:
        return generate(server, style=style, line_length=length, ruff=ruff)
    except ValueError as error:  # circles that never go deeper
        assert "refer to themselves" in str(error)  # noqa: PT017
        return generate({"services": {}})


QUICK = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@settings(QUICK, max_examples=examples(150))
@given(SERVERS, st.sampled_from(STYLES))
def test_what_is_written_always_runs(server: Any, style: Style) -> None:
    text = attempt(server, style)
    loaded(text)
    assert attempt(server, style) == text


# Each run of a checker takes as long as the interpreter that starts it, so it is given several.
SEVERAL = st.lists(st.tuples(SERVERS, st.sampled_from(STYLES)), min_size=8, max_size=12)


@settings(QUICK, max_examples=3, phases=[Phase.generate])
@given(SEVERAL, st.sampled_from([60, 88, 120]))
def test_what_is_written_is_always_formatted(
    tmp_path_factory: pytest.TempPathFactory, servers: Any, length: int
) -> None:
    place = tmp_path_factory.mktemp("formatted")
    for number, (server, style) in enumerate(servers):
        formatted, plain = attempt(server, style, length, RUFF), attempt(server, style, length)
        assert is_same_code(formatted, plain)
        for folder, text in (("formatted", formatted), ("plain", plain)):
            (place / folder).mkdir(exist_ok=True)
            (place / folder / f"m{number}.py").write_text(text)
    limits = ("--line-length", str(length), "--no-cache")
    assert ruff("", "format", "--check", "--diff", *limits, place=place / "formatted") == ""
    assert ruff("", "check", "--select", RULES, *limits, place=place) == ""


@settings(QUICK, max_examples=3, phases=[Phase.generate])
@given(SEVERAL)
def test_what_is_written_is_always_typed(
    stubs: Path, tmp_path_factory: pytest.TempPathFactory, servers: Any
) -> None:
    texts = [attempt(server, style) for server, style in servers]
    assert mypy(stubs, tmp_path_factory.mktemp("typed"), *texts) == ""
