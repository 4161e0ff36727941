"""Offer the service that the published snapshots of a schema are of."""

from __future__ import annotations

from typing import Any

from wsmux.rpc.services import Service

__all__ = ["ECHO", "NUMBER", "STRING", "UNION", "answer", "obj", "published_service", "talk"]

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def obj(**properties: Any) -> dict[str, Any]:
    """Return what TypeBox's ``Type.Object`` gives when no property is optional."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": list(properties)} if properties else schema


def answer(ctx: Any, init: Any) -> Any: ...


def take(ctx: Any, init: Any, requests: Any) -> Any: ...


def write(ctx: Any, init: Any, responses: Any) -> Any: ...


def talk(ctx: Any, init: Any, requests: Any, responses: Any) -> Any: ...


ECHO = obj(msg=STRING, ignore={"type": "boolean"})

UNION = {
    "anyOf": [
        obj(a={"type": "number", "description": "A number"}) | {"description": "A"},
        obj(b={"type": "string", "description": "A string"}) | {"description": "B"},
    ]
}


def published_service() -> Service:
    """Return the service that the snapshots are of."""
    test = Service("test", state={"count": 0})
    test.rpc(init=obj(n=NUMBER), response=obj(result=NUMBER), name="add")(answer)
    array = {"type": "array", "items": NUMBER}
    test.rpc(init=obj(n=NUMBER), response=array, name="array")(answer)
    test.stream(init=obj(), request=obj(n=NUMBER), response=array, name="arrayStream")(talk)
    test.stream(init=obj(), request=ECHO, response=obj(response=STRING), name="echo")(talk)
    prefix = obj(prefix=STRING)
    test.stream(init=prefix, request=ECHO, response=obj(response=STRING), name="echoWithPrefix")(
        talk
    )
    said = "Echos back whatever we sent"
    test.rpc(init=UNION, response=UNION, name="echoUnion", description=said)(answer)
    test.upload(init=obj(), request=obj(), response=obj(), name="unimplementedUpload")(take)
    test.subscription(init=obj(), response=obj(), name="unimplementedSubscription")(write)
    return test


published_service.__test__ = False  # type: ignore[attr-defined]
