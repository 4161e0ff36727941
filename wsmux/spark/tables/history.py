"""Read from the log of a table what made each of its versions."""

from __future__ import annotations

from ..protocol import Code, refusal
from ..store.base import VersionInfo
from .actions import Action
from .table import DeltaDirectory

__all__ = ["HISTORY", "MAX_HISTORY", "history"]

# Versions that are told, by default and at most: they have to fit one message.
HISTORY, MAX_HISTORY = 100, 10_000


def history(table: DeltaDirectory, limit: int = HISTORY) -> list[VersionInfo]:
    """Return the newest versions, the newest first, as far as the log goes back.

    One entry is in memory at a time.

    Raises:
        RiverError: NO_DATASET or CORRUPT.
    """
    with table.view() as state:
        if state is None:
            raise refusal(Code.NO_DATASET, f"there is no dataset {table.name}")
        newest = state.version
    told: list[VersionInfo] = []
    for version in range(newest, max(-1, newest - limit), -1):
        try:
            actions, written = table.entry(version)
        except FileNotFoundError:
            break  # a checkpoint stands for it, and for all before it
        told.append(_told(version, actions, written))
    return told


def _told(version: int, actions: list[Action], written: float) -> VersionInfo:
    info = next((each["commitInfo"] for each in actions if "commitInfo" in each), None)
    if not isinstance(info, dict):  # a writer need not tell
        info = {}
    time = info.get("timestamp")
    parameters, metrics = info.get("operationParameters"), info.get("operationMetrics")
    return VersionInfo(
        version,
        time / 1000 if isinstance(time, int | float) and time > 0 else written,
        str(info.get("operation") or ""),
        parameters if isinstance(parameters, dict) else {},
        metrics if isinstance(metrics, dict) else {},
    )
