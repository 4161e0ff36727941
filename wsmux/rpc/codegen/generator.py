"""Generate a typed Python client of a River server, from the server's schema.

The client is one module: a class for each service, a method for each procedure, and a type for
each init, request, response and error, all sorted. The same schema always gives the same code. The
module is formatted with ruff if that is installed. As the formatting differs between machines and
versions of ruff, clients are compared by their syntax trees.
"""

from __future__ import annotations

import json
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..schema.document import (
    PROTOCOL_ERRORS,
    ServedProcedure,
    ServedSchema,
    ServedService,
    read_schema,
)
from ..services import Kind, error_codes
from .formatting import formatted
from .layout import AMBIGUOUS, IMPORTS, Layout, Style, docstring, listed
from .types import NEVER, Expr, Names, Types, pascal, union

__all__ = ["Style", "generate"]

HEAD = '''"""Call River services.

Written by wsmux.rpc.codegen; what is changed here is lost when it is written again.
"""

from __future__ import annotations'''

# By kind: what a call returns for typed dicts and for dataclasses, and the client's method.
CALLS = {
    Kind.RPC: ("", "", "rpc"),
    Kind.UPLOAD: ("Upload", "TypedUpload", "upload"),
    Kind.SUBSCRIPTION: ("Subscription", "TypedSubscription", "subscribe"),
    Kind.STREAM: ("StreamCall", "TypedStreamCall", "stream"),
}


def generate(
    source: ServedSchema | str | bytes | Mapping[str, Any],
    *,
    style: Style = "typeddict",
    line_length: int = 88,
    ruff: str | None = None,
) -> str:
    """Return the source of a client for a server's schema.

    The client needs Python 3.11 and ``wsmux.rpc``, and passes ``mypy --strict`` and ``ruff check``:
    where a line cannot be kept within ``line_length``, the module tells ruff to accept that.

    Args:
        source: what ``read_schema()`` takes or returns: the schema as JSON text, data or read.
        style: ``"typeddict"``: values are dicts, as on the wire. ``"dataclass"``: objects are
            dataclasses, whose fields are renamed where a name is not valid in Python. An optional
            field that is absent is ``None``, and is left out of what is sent if it is ``None``.
            Errors are raised as classes with a typed ``extra``, one for each code of a service:
            ``except files.NotFound as error``. If procedures declare the same code differently,
            each gets a class of its own: ``files.ReadNotFound``.
        line_length: maximum length of a line in characters, at least 60. Lines with a long name or
            text of the schema may be longer, and without ruff those with a long type.
        ruff: path of the program that formats the module. Without it the formatting is simpler,
            and the code the same.

    Raises:
        OSError: ruff cannot be run, or fails.
        ValueError: the schema is not in River's format, refers to a schema outside itself, or to
            itself without going deeper; the style is unknown, or ``line_length`` is below 60.

    >>> text = generate({"services": {"clock": {"procedures": {
    ...     "now": {"type": "rpc", "init": {}, "output": {"type": "Date"}}}}}})
    >>> text.count("class Clock:"), text.count("ClockNowResponse: TypeAlias = datetime")
    (1, 1)
    """
    if style not in ("typeddict", "dataclass"):
        raise ValueError(f"style must be 'typeddict' or 'dataclass', not {style!r}")
    if line_length < 60:
        raise ValueError("line_length must be at least 60")
    schema = source if isinstance(source, ServedSchema) else read_schema(source)
    try:
        return _Module(schema, style, line_length).text(ruff)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None


class _Module:
    """Build the source of one client."""

    def __init__(self, schema: ServedSchema, style: Style, width: int) -> None:
        self.schema = schema
        self.width = width
        self.converts = style == "dataclass"
        self.types = Types(Names({*IMPORTS, *AMBIGUOUS, "annotations"}))
        self.layout = Layout(self.types, style, width)
        self.protocol = NEVER  # the union of the protocol's errors
        self.errors: dict[str, dict[str, Expr]] = {}  # by service, then by shape

    def text(self, ruff: str | None) -> str:
        services = [self.schema.services[each] for each in sorted(self.schema.services)]
        classes = [self.types.names.take(pascal(each.name)) for each in services]
        if self.schema.handshake is not None:
            self.types.define(self.schema.handshake, "HandshakeMetadata")
        if services:
            self.layout.used |= {"TYPE_CHECKING", "Client"}
            define = self._raised if self.converts else self.types.define
            protocol = union(define(each, pascal(error_codes(each)[0])) for each in PROTOCOL_ERRORS)
            self.protocol = self.types.alias("ProtocolError", protocol)
        common = [each.name for each in self.types.errors]
        signatures = [
            self._signatures(service, each) for service, each in zip(services, classes, strict=True)
        ]
        calls = [
            self._service(service, each, signature)
            for service, each, signature in zip(services, classes, signatures, strict=True)
        ]
        body = self.layout.definitions()
        if "Wire" in self.layout.used:
            body.append(listed("_wire = Wire(", ["globals()", *common], ")", self.width))
        defined = [each.name for each in self.types.records]
        defined += [each.name for each in self.types.aliases]
        defined += [each.name for each in self.types.errors]
        blocks = [*self._imports(), self._exports([*classes, *defined])]
        text = "\n\n".join([HEAD, *blocks]) + "".join(f"\n\n\n{each}" for each in body + calls)
        laid_out = f"{text}\n" if ruff is None else formatted(f"{text}\n", ruff, self.width)
        return self._pragma(laid_out) + laid_out

    def _pragma(self, text: str) -> str:
        """Return the comment that turns off rules which names and texts of the schema break."""
        wide = [line for line in text.splitlines() if _columns(line) > self.width]
        # Ruff allows a long line of a single word, and one that ends with a URL.
        long = [line for line in wide if len(line.split()) > 1 and "://" not in line.split()[-1]]
        rules = sorted(self.layout.noqa | ({"E501"} if long else set()))
        return f"# ruff: noqa: {', '.join(rules)}\n" if rules else ""

    def _exports(self, names: list[str]) -> str:
        if not names:
            return "__all__: list[str] = []"
        return listed("__all__ = [", map(repr, sorted(names)), "]", self.width)

    def _imports(self) -> Iterator[str]:
        """Yield the blocks of imports; only type checkers need that of the client."""
        by_module: dict[str, list[str]] = {}
        for each in sorted(self.layout.used, key=lambda each: (not each.isupper(), each)):
            by_module.setdefault(IMPORTS[each], []).append(each)
        lines = {each: _import(each, by_module[each], self.width) for each in sorted(by_module)}
        client = lines.pop("wsmux.rpc", None)
        ours = [lines.pop(each) for each in sorted(lines) if each.startswith("wsmux.")]
        if lines:
            yield "\n".join(lines.values())
        if ours:
            yield "\n".join(ours)
        if client is not None:
            yield "if TYPE_CHECKING:\n" + textwrap.indent(client, "    ")

    def _raised(self, schema: Mapping[str, Any], wanted: str) -> Expr:
        return self.types.define_error(schema, error_codes(schema), wanted)

    def _error_classes(self, service: ServedService, class_name: str) -> dict[str, Expr]:
        """Define the errors of a service, one for all procedures that declare it alike."""
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        for each in sorted(service.procedures):
            for error in service.procedures[each].errors:
                found.setdefault(_shape(error), (each, error))
        counts = Counter(error_codes(error)[0] for _, error in found.values())
        classes = {}
        for shape, (procedure, error) in found.items():
            code = error_codes(error)[0]
            short = pascal(code) if counts[code] == 1 else pascal(procedure) + pascal(code)
            classes[shape] = self._raised(error, class_name + short)
        return classes

    def _signatures(self, service: ServedService, class_name: str) -> dict[str, list[Expr]]:
        """Define the types of a service; return those of the values of each procedure."""
        signatures = {}
        self.errors[service.name] = (
            self._error_classes(service, class_name) if self.converts else {}
        )
        for each in sorted(service.procedures):
            procedure = service.procedures[each]
            prefix = class_name + pascal(each)
            roles = {"Init": procedure.init, "Response": procedure.response}
            if procedure.request is not None:
                roles = {"Init": procedure.init, "Request": procedure.request} | roles
            signatures[each] = [
                self.types.define(schema, prefix + role) for role, schema in roles.items()
            ]
            errors = [self._error(procedure, schema, prefix) for schema in procedure.errors]
            self.types.alias(f"{prefix}Error", union([*errors, self.protocol]))
        return signatures

    def _error(self, procedure: ServedProcedure, schema: Mapping[str, Any], prefix: str) -> Expr:
        """Return the type of a declared error."""
        if self.converts:
            return self.errors[procedure.service][_shape(schema)]
        return self.types.define(schema, f"{prefix}Error{pascal(error_codes(schema)[0])}")

    # -- calls -----------------------------------------------------------------------------------

    def _service(
        self, service: ServedService, class_name: str, signatures: dict[str, list[Expr]]
    ) -> str:
        about = service.description or f"Call the service {service.name}."
        lines = [f"class {class_name}:", *docstring(about, {}, "    ", self.width)]
        methods = self.layout.methods(service.procedures)
        classes = {
            str(each).removeprefix(class_name): each for each in self.errors[service.name].values()
        }
        short = self.layout.error_names(classes, methods.values())
        errors = [f"    {short[each]} = {classes[each]}" for each in sorted(classes)]
        lines += [*errors, ""] if errors else []
        lines += [
            "    def __init__(self, client: Client) -> None:",
            "        self._client = client",
        ]
        for each in sorted(service.procedures):
            lines += ["", *self._method(service.procedures[each], methods[each], signatures[each])]
        return "\n".join(lines)

    def _method(self, procedure: ServedProcedure, method: str, types: list[Expr]) -> Iterator[str]:
        init, *others = map(str, types)
        plain, typed, _ = CALLS[procedure.kind]
        wrapper = typed if self.converts else plain
        self.layout.used |= {"Abort", *({plain, typed} & {wrapper} - {""})}
        yield f"    def {method}("
        yield "        self,"
        yield f"        init: {init},"
        yield "        timeout: float | None = None,"
        yield "        abort: Abort | None = None,"
        start, end = (f"    ) -> {wrapper}[", "]:") if wrapper else ("    ) -> ", ":")
        yield listed(start, others, end, self.width)
        codes = [code for error in procedure.errors for code in error_codes(error)]
        about = procedure.description or f"Call {procedure.service}.{procedure.name}."
        if codes:
            about += f" Errors: {', '.join(dict.fromkeys(codes))}."
        yield from docstring(about, {}, "        ", self.width)[:-1]
        call = self._converted(procedure, others) if self.converts else self._plain(procedure)
        if wrapper:
            yield "        return " + "\n".join(call).lstrip()
            return
        answer = f"        result: {others[0]} = " + "\n".join(call).lstrip()
        if self.converts:
            start = "        with _wire.raising("
            yield listed(start, self._declared(procedure), "):", self.width)
            answer = textwrap.indent(answer, "    ")
        yield answer
        yield "        return result"

    def _declared(self, procedure: ServedProcedure) -> list[str]:
        """Return the classes of the errors that a procedure declares."""
        classes = self.errors[procedure.service]
        return list(dict.fromkeys(str(classes[_shape(each)]) for each in procedure.errors))

    def _plain(self, procedure: ServedProcedure, init: str = "init") -> Iterator[str]:
        """Yield the lines of a call of the client."""
        yield f"        self._client.{CALLS[procedure.kind][2]}("
        yield f"            {procedure.service!r},"
        yield f"            {procedure.name!r},"
        yield f"            {init},"
        yield "            timeout=timeout,"
        yield "            abort=abort,"
        yield "        )"

    def _converted(self, procedure: ServedProcedure, types: list[str]) -> Iterator[str]:
        """Yield the lines of a call whose values are turned into dataclasses, and back."""
        self.layout.used.add("Wire")
        wrapper = CALLS[procedure.kind][1]
        yield f"        {wrapper or '_wire.read'}("
        if wrapper:
            yield "            _wire,"
        yield f"            {types[-1]},"
        *inner, last = self._plain(procedure, "_wire.write(init)")
        yield from (f"    {line}" for line in inner)
        yield f"    {last},"
        if wrapper:
            yield from (f"            {each}," for each in self._declared(procedure))
        yield "        )"


def _shape(schema: Mapping[str, Any]) -> str:
    """Return a text that is equal for errors which are equal except for their descriptions."""
    return json.dumps({**schema, "description": None}, sort_keys=True)


def _columns(line: str) -> int:
    return len(line) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in line)


def _import(module: str, names: list[str], width: int) -> str:
    line = f"from {module} import {', '.join(names)}"
    # That of the client is indented.
    if len(line) + 4 * (module == "wsmux.rpc") <= width:
        return line
    return listed(f"from {module} import (", names, ")", 0)
