"""Say what Hypothesis draws: always the same, and as many as a test names, or a part of them.

What is drawn depends on the test alone, not on the run: whoever draws as many once more proves the
same of the same inputs. A plain run draws a fifth of them, and ``WSMUX_EXAMPLES_DIVIDED_BY=1`` all.
"""

from __future__ import annotations

import os

from hypothesis import settings

__all__ = ["examples"]

DIVISOR = int(os.environ.get("WSMUX_EXAMPLES_DIVIDED_BY", "5"))
FEWEST = 10  # unless a test names fewer


def examples(usual: int) -> int:
    """Return the number of examples to draw for a test that usually has so many."""
    return min(usual, max(FEWEST, usual // DIVISOR))


settings.register_profile(
    "wsmux", derandomize=True, deadline=None, max_examples=examples(settings.default.max_examples)
)
settings.load_profile("wsmux")
