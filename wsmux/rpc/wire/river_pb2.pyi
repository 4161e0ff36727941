from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tracing(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "sender", "receiver", "seq", "ack", "stream_id", "flags", "service", "procedure", "tracing", "timeout_ms", "raw", "msgpack")
    ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    PROCEDURE_FIELD_NUMBER: _ClassVar[int]
    TRACING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    id: str
    sender: str
    receiver: str
    seq: int
    ack: int
    stream_id: str
    flags: int
    service: str
    procedure: str
    tracing: Tracing
    timeout_ms: int
    raw: bytes
    msgpack: bytes
    def __init__(self, id: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., seq: _Optional[int] = ..., ack: _Optional[int] = ..., stream_id: _Optional[str] = ..., flags: _Optional[int] = ..., service: _Optional[str] = ..., procedure: _Optional[str] = ..., tracing: _Optional[_Union[Tracing, _Mapping[str, object]]] = ..., timeout_ms: _Optional[int] = ..., raw: _Optional[bytes] = ..., msgpack: _Optional[bytes] = ...) -> None: ...
