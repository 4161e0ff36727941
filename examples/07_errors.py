"""Give your own errors a code, so that the other side raises the same ones."""

from __future__ import annotations

import wsmux

CODES = {64: LookupError, 65: PermissionError}


def to_reason(code: int) -> BaseException:
    return CODES.get(code, RuntimeError)(f"the server said code {code}")


def to_code(reason: BaseException) -> int:
    return next((code for code, kind in CODES.items() if isinstance(reason, kind)), 0)


def find(stream: wsmux.Stream) -> None:
    name = stream.read(100).decode()
    if name != "known":
        raise LookupError(name)
    stream.write(b"found")


with (
    wsmux.serve(stream_handler=find, reason_to_code=to_code) as server,
    wsmux.connect(server.url, code_to_reason=to_reason) as connection,
):
    for name in ("known", "unknown"):
        with connection.open_stream() as stream:
            stream.write(name.encode())
            try:
                print(name, "->", stream.read().decode())
            except LookupError as error:
                print(name, "->", error)

# Output:
# known -> found
# unknown -> the server said code 64
