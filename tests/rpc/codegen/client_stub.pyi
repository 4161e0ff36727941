from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

R = TypeVar("R")
Q = TypeVar("Q")

class _Handle:
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def cancel(self, message: str = ...) -> None: ...

class Subscription(_Handle, Generic[R]):
    def __iter__(self) -> Iterator[R]: ...
    def read(self, timeout: float | None = None) -> R: ...
    def close(self) -> None: ...

class Upload(_Handle, Generic[Q, R]):
    def write(self, request: Q, timeout: float | None = None) -> None: ...
    def close_write(self) -> None: ...
    def finish(self, timeout: float | None = None) -> R: ...

class StreamCall(_Handle, Generic[Q, R]):
    def __iter__(self) -> Iterator[R]: ...
    def read(self, timeout: float | None = None) -> R: ...
    def write(self, request: Q, timeout: float | None = None) -> None: ...
    def close_write(self) -> None: ...

class Abort:
    def set(self) -> None: ...

class Client:
    def rpc(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Any: ...
    def subscribe(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Subscription[Any]: ...
    def upload(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Upload[Any, Any]: ...
    def stream(
        self,
        service: str,
        procedure: str,
        init: Any,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> StreamCall[Any, Any]: ...
