"""Hold what the steps of an examination found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Failed", "Report", "Status", "Step"]


class Status(StrEnum):
    """Say how a step went; one that could not be made, or was not asked for, is skipped."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(NamedTuple):
    """What one step found; ``fix`` is empty where there is nothing to do."""

    name: str
    status: Status
    fact: str
    fix: str = ""


class Failed(Exception):
    """Report that a step failed, so that those after it cannot be made."""

    def __init__(self, name: str, fact: str, fix: str) -> None:
        super().__init__(fact)
        self.step = Step(name, Status.FAILED, fact, fix)


class Report:
    """Collect the steps, in order."""

    def __init__(self, url: str, names: tuple[str, ...]) -> None:
        self.url = url
        self.steps: list[Step] = []
        self._names = names

    def ok(self, name: str, fact: str) -> None:
        """Note a step that found nothing wrong."""
        self.steps.append(Step(name, Status.OK, fact))

    def warn(self, name: str, fact: str, fix: str) -> None:
        """Note a step that found what will hurt."""
        self.steps.append(Step(name, Status.WARNING, fact, fix))

    def fail(self, name: str, fact: str, fix: str) -> None:
        """Note a step that failed, though further ones can be made."""
        self.steps.append(Step(name, Status.FAILED, fact, fix))

    def skip(self, name: str, fact: str) -> None:
        """Note a step that was not made, and why."""
        self.steps.append(Step(name, Status.SKIPPED, fact))

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Note the failure of a step that stops the rest, and the rest as skipped."""
        try:
            yield
        except Failed as error:
            self.steps.append(error.step)
            done = {step.name for step in self.steps}
            for name in self._names:
                if name not in done:
                    self.skip(name, f"not reached: {error.step.name} failed")

    @property
    def failed(self) -> bool:
        """Whether any step failed."""
        return any(step.status is Status.FAILED for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        return {
            "url": self.url,
            "ok": not self.failed,
            "steps": [step._asdict() for step in self.steps],
        }
