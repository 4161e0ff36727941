"""Make calls while planning, on connections that are closed afterwards."""

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
    """Call an idempotent procedure, retrying after transient errors.

    Blocks for up to ``call_timeout`` of the recipe per attempt.

    Raises:
        SparkError: with the server's code, or that of the failed call.
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
        text = f"expected an object as answer, got {type(answer).__name__}"
        raise link.error("BAD_ANSWER", text, f"{service}.{procedure}")
    return answer


def ask_once(recipe: Recipe, service: str, procedure: str, /, **init: Any) -> dict[str, Any]:
    """Call a procedure as ``ask`` does, on a connection of its own."""
    with recipe.once() as link:
        return ask(link, service, procedure, **init)


def refused(recipe: Recipe, error: RiverError, what: str) -> SparkError:
    """Return the exception for an error found while planning, without a call."""
    return SparkError(error.code, error.message, what, place(recipe.url))
