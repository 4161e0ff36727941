"""Make calls while planning: in a process that connects, asks, and holds nothing on."""

from __future__ import annotations

import time
from typing import Any

from ...exceptions import WsmuxError
from ...rpc import RiverError
from ..calls.task_calls import Target, failure, passes
from ..connection_settings import Link, Recipe, retry_delay
from ..errors import SparkError, place

__all__ = ["ask", "ask_once", "refused"]


def ask(link: Link, service: str, procedure: str, /, **init: Any) -> dict[str, Any]:
    """Call a procedure; what fails and may pass is tried again, so it must be idempotent.

    Blocks for ``call_timeout`` of the recipe, each time.

    Raises:
        SparkError: with the server's code, or what a call fails with.
    """
    recipe = link.recipe
    for attempt in range(recipe.retries + 1):
        try:
            answer = link.client().rpc(service, procedure, init, recipe.call_timeout)
            break
        except (WsmuxError, OSError) as error:
            if attempt == recipe.retries or not passes(link, error):
                raise failure(link, Target(recipe, service, procedure), error) from None
        time.sleep(retry_delay(recipe.retry_backoff, attempt + 1))
    if not isinstance(answer, dict):
        text = f"the answer is {type(answer).__name__}, no object"
        raise link.error("BAD_ANSWER", text, f"{service}.{procedure}")
    return answer


def ask_once(recipe: Recipe, service: str, procedure: str, /, **init: Any) -> dict[str, Any]:
    """Call a procedure as ``ask`` does, on a connection that is closed after it."""
    with recipe.once() as link:
        return ask(link, service, procedure, **init)


def refused(recipe: Recipe, error: RiverError, what: str) -> SparkError:
    """Return what is raised for an error that was found while planning, without a call."""
    return SparkError(error.code, error.message, what, place(recipe.url))
