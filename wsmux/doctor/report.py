"""Hold the results of an examination."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Failed", "Report", "Status", "Step"]


class Status(StrEnum):
    """The outcome of a step; one that was impossible, or not requested, is skipped."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(NamedTuple):
    """The result of one step; ``fix`` is empty if there is nothing to do."""

    name: str
    status: Status
    fact: str
    fix: str = ""


class Failed(Exception):
    """Report that a step failed, so that later ones are impossible."""

    def __init__(self, name: str, fact: str, fix: str) -> None:
        super().__init__(fact)
        self.step = Step(name, Status.FAILED, fact, fix)


class Report:
    """Collect the results of the steps, in order."""

    def __init__(self, url: str, names: tuple[str, ...]) -> None:
        self.url = url
        self.steps: list[Step] = []
        self._names = names

    def ok(self, name: str, fact: str) -> None:
        """Record a step without problems."""
        self.steps.append(Step(name, Status.OK, fact))

    def warn(self, name: str, fact: str, fix: str) -> None:
        """Record a step that found a potential problem."""
        self.steps.append(Step(name, Status.WARNING, fact, fix))

    def fail(self, name: str, fact: str, fix: str) -> None:
        """Record a step that failed, while later ones are still possible."""
        self.steps.append(Step(name, Status.FAILED, fact, fix))

    def skip(self, name: str, fact: str) -> None:
        """Record a step that was skipped, and why."""
        self.steps.append(Step(name, Status.SKIPPED, fact))

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Record the failure of a step that prevents later ones, and those as skipped."""
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
        """Return the report as JSON-compatible values."""
        return {
            "url": self.url,
            "ok": not self.failed,
            "steps": [step._asdict() for step in self.steps],
        }
