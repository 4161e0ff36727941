from typing import Any

class RiverError(Exception):
    code: str
    message: str
    extra: Any
    def __init__(self, code: str, message: str = "", extra: Any = None) -> None: ...
