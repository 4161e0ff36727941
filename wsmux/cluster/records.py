"""Describe the nodes and connections of a cluster, and check what others say of them. Pure.

A *node* is one process that takes part. Its id is made when it starts and never used again, so what
Redis says of a node that has died is never taken for its successor. A *member* is one connection
under one name; its id is unique within its node.

With a shared key, the record that a node keeps in Redis is signed, so that somebody who can only
write to Redis cannot lead streams elsewhere, and a node that connects to another one shows a token
that is valid for that node alone, and for a minute.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import unicodedata
from typing import Any, NamedTuple

__all__ = [
    "EVERY_NAME",
    "MAX_NAME",
    "VERSION",
    "Known",
    "Listed",
    "Node",
    "NodeProcess",
    "Presence",
    "check_key",
    "check_name",
    "check_token",
    "key_prefix",
    "link_token",
    "name_prefix",
    "parse_fields",
    "parse_node",
    "parse_process",
    "signed_node",
]

# Bytes of a name in UTF-8, and of the shared key at least.
MAX_NAME = 256
SHORTEST_KEY = 16

# Bytes of the record of a node.
MAX_RECORD = 2048

# Seconds for which a token is valid, and by which the clocks of two nodes may differ.
TOKEN_LIFE, CLOCK_SKEW = 60, 60

# Characters of the name of a machine, and the longest lease in seconds.
MAX_HOST, MAX_LEASE = 64, 3600.0

EVERY_NAME = "*"

VERSION = 1


class Node(NamedTuple):
    """Describe a process of the cluster.

    Attributes:
        id: its id, 32 hexadecimal digits.
        host: what distinguishes machines, and containers with file systems of their own.
        path: its Unix socket, for nodes of the same host.
        url: its address for nodes of other hosts; empty if it has none.
    """

    id: str
    host: str
    path: str
    url: str


class NodeProcess(NamedTuple):
    """The process of a node, for people to read; nothing is routed by it.

    Attributes:
        pid: its process id.
        host: the name of its machine.
        lease: seconds of its lease.
    """

    pid: int
    host: str
    lease: float


class Known(NamedTuple):
    """Hold what Redis knows of a node.

    Attributes:
        id: its id.
        node: where it is reached; ``None`` if it is not to be asked, and ``why``.
        process: which process it is, if it says so.
        why: why not: its record is not believed, or it has no lease any more; empty else.
        renewed: seconds since its lease was renewed; ``None`` if it does not say how long that is.
        members: how many members it has.
        names: the names of some of them.
    """

    id: str
    node: Node | None
    process: NodeProcess | None
    why: str
    renewed: float | None
    members: int
    names: list[str]


class Listed(NamedTuple):
    """Hold nodes that have a lease, how many more there are, and those that have lost theirs."""

    known: list[Known]
    left_out: int
    lost: list[Known]


class Presence(NamedTuple):
    """Describe a connection that has joined a cluster.

    Attributes:
        name: the name under which it has joined.
        node: the id of the process that has it.
        id: its id within that process.
        since: when it joined, in Unix seconds by the clock of that process.
    """

    name: str
    node: str
    id: str
    since: float


def check_name(name: str, what: str = "a name") -> str:
    """Return a name.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty, too long, contains a control character, or ends with ``*``.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {type(name).__name__}")
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME:
        raise ValueError(f"{what} has 1 to {MAX_NAME} bytes in UTF-8, not {size}")
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in name):
        raise ValueError(f"{what} cannot contain control characters, as {name!r} does")
    if name.endswith(EVERY_NAME):
        raise ValueError(f"{what} cannot end with *, which stands for any ending: {name!r}")
    return name


def name_prefix(pattern: str) -> tuple[str, bool]:
    """Return the text of a pattern, and whether further characters may follow it.

    Raises:
        TypeError, ValueError: it is neither a name nor the beginning of one with ``*`` behind it.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern must be a string, not {type(pattern).__name__}")
    if not pattern.endswith(EVERY_NAME):
        return check_name(pattern, "a pattern"), False
    prefix = pattern.removesuffix(EVERY_NAME)
    if prefix:
        check_name(prefix, "a pattern")
    return prefix, True


def key_prefix(namespace: str) -> str:
    """Return what all keys of a namespace begin with, and those of no other one.

    A colon of the namespace is quoted: what follows a name in a key could be taken for its end.
    """
    quoted = namespace.replace("%", "%25").replace(":", "%3A")
    return f"wsmux:cluster:{quoted}:"


def check_key(key: str | bytes | None) -> bytes | None:
    """Return a shared key as bytes.

    Raises:
        TypeError: it is neither text nor bytes.
        ValueError: it is too short.
    """
    if key is None:
        return None
    if not isinstance(key, str | bytes):
        raise TypeError(f"key must be a string or bytes, not {type(key).__name__}")
    secret = key.encode() if isinstance(key, str) else key
    if len(secret) < SHORTEST_KEY:
        raise ValueError(
            f"key must have at least {SHORTEST_KEY} bytes, not {len(secret)}; "
            "secrets.token_urlsafe() makes one"
        )
    return secret


def signed_node(node: Node, key: bytes | None, process: NodeProcess | None = None) -> bytes:
    """Return the record of a node, signed if there is a key.

    Its process is a field of its own with a signature of its own, which earlier versions pass over.
    """
    fields: dict[str, Any] = {"v": VERSION, **node._asdict()}
    if key is not None:
        fields["mac"] = _mac(key, "node", *map(str, node))
    if process is not None:
        fields["process"] = [process.pid, process.host[:MAX_HOST], process.lease]
        if key is not None:
            fields["process_mac"] = _process_mac(key, node.id, fields["process"])
    return json.dumps(fields, separators=(",", ":")).encode()


def _process_mac(key: bytes, node: str, process: list[Any]) -> str:
    return _mac(key, "process", node, json.dumps(process))


def parse_node(record: bytes, key: bytes | None) -> Node:
    """Return the node of a record.

    Raises:
        ValueError: it is of another version, malformed, or not signed with the key.
    """
    if len(record) > MAX_RECORD:
        raise ValueError(f"the record of a node has {len(record)} bytes, {MAX_RECORD} at most")
    fields = parse_fields(record, "the record of a node")
    values = [fields.get(name) for name in Node._fields]
    if not all(isinstance(each, str) for each in values):
        raise ValueError(f"the record of a node lacks a text: {record[:80]!r}")
    node = Node(*map(str, values))
    if key is not None:
        given = fields.get("mac")
        if not isinstance(given, str) or not _same(given, _mac(key, "node", *node)):
            raise ValueError(f"the record of node {node.id[:8]} is not signed with this key")
    return node


def parse_process(record: bytes, key: bytes | None) -> NodeProcess | None:
    """Return the process of a record that ``parse_node`` took.

    ``None`` if it does not name one, as one of an earlier version, or is not believed.
    """
    fields = parse_fields(record, "the record of a node")
    match fields.get("process"):
        case [int(pid), str(host), float(lease)] if 0 < lease <= MAX_LEASE:
            given = fields.get("process_mac")
            if key is None or (
                isinstance(given, str)
                and _same(given, _process_mac(key, str(fields.get("id")), fields["process"]))
            ):
                return NodeProcess(pid, host[:MAX_HOST], lease)
    return None


def parse_fields(text: bytes, what: str) -> dict[str, Any]:
    """Return the fields of a record or message of this version.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter if it is nested too deeply
        raise ValueError(f"{what} is not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        raise ValueError(
            f"{what} is not of version {VERSION}, as after an update of some nodes: {text[:80]!r}"
        )
    return fields


def link_token(key: bytes, source: str, target: str, now: float) -> str:
    """Return what the node ``source`` shows to ``target`` when it connects."""
    ends = str(int(now) + TOKEN_LIFE)
    return f"{source}.{ends}.{_mac(key, 'link', source, target, ends)}"


def check_token(key: bytes, token: str, target: str, now: float) -> str:
    """Return the id of the node that shows a token.

    Raises:
        PermissionError: it was made with another key, or for another node, or has expired.
    """
    source, _, rest = token.partition(".")
    ends, _, given = rest.partition(".")
    if not _same(given, _mac(key, "link", source, target, ends)):
        raise PermissionError("this token was made with another key, or for another node")
    if not now - CLOCK_SKEW <= int(ends) <= now + TOKEN_LIFE + CLOCK_SKEW:
        raise PermissionError(
            f"this token is valid until {ends}, and the clock here says {int(now)}: "
            f"the clocks of two nodes may differ by {CLOCK_SKEW} s"
        )
    return source


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _mac(key: bytes, *parts: str) -> str:
    """Return the HMAC-SHA256 of texts, each with its length before it, in hexadecimal digits."""
    text = b"".join(
        b"%d:%s" % (len(part), part)
        for part in (each.encode("utf-8", "surrogatepass") for each in parts)
    )
    return hmac.new(key, text, hashlib.sha256).hexdigest()
