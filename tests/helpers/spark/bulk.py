"""Write and read record batches through a data server, as any client may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wsmux
from wsmux import rpc
from wsmux.spark.server.arrow_stream import Limits, send

from .arrow_data import pa
from .clients import WAIT, open_named, read_line


def put(
    connection: wsmux.Connection, txn: str, partition: int, *batches: Any, attempt: int = 0
) -> Any:
    """Stage a part; return the answer, which is the receipt."""
    stream = open_named(connection, "write", txn=txn, partition=partition, attempt=attempt)
    with stream:
        answer = read_line(stream)
        if not answer["ok"]:
            return answer
        try:
            send(stream, batches[0].schema, batches, Limits(batch_bytes=1 << 40))
            stream.close_write()
        except wsmux.StreamWriteClosed:
            pass  # refused while it was sent: the answer says why
        answer = read_line(stream)
        assert stream.read(1) == b""
        return answer


def get(connection: wsmux.Connection, **header: Any) -> tuple[Any, list[Any]]:
    """Read a range; return its schema and batches."""
    stream = open_named(connection, "read", **header)
    with stream:
        assert read_line(stream)["ok"] is True
        with stream.makefile("rb") as file, pa.ipc.open_stream(file) as reader:
            batches = list(reader)
            assert file.read(1) == b""
            return reader.schema, batches


def schema_of(schema: Any) -> bytes:
    return bytes(schema.serialize())


def call(client: rpc.Client, name: str, **init: Any) -> Any:
    service, _, procedure = name.partition(".")
    return client.rpc(service, procedure, init, WAIT)


def write_all(
    client: rpc.Client,
    connection: wsmux.Connection,
    dataset: str,
    parts: Sequence[Sequence[Any]],
    mode: str = "append",
) -> Any:
    """Write a dataset, a part for each sequence of batches; return what the commit answers."""
    schema = schema_of(parts[0][0].schema)
    txn = call(client, "dataset.begin", dataset=dataset, mode=mode, schema=schema)["txn"]
    receipts = [put(connection, txn, place, *batches) for place, batches in enumerate(parts)]
    return call(client, "dataset.commit", txn=txn, receipts=receipts)
