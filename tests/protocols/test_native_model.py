"""Two native machines on a slow wire never lose a byte, a window or a stream.

``helpers/models`` has the model; ``whole/test_long_models`` runs it for long.
"""

from __future__ import annotations

from hypothesis import settings

from ..helpers.models.native import NativeModel, ShippedModel

TestNativeModel = NativeModel.TestCase
TestNativeModel.settings = settings(max_examples=80, stateful_step_count=60)
TestShippedModel = ShippedModel.TestCase
TestShippedModel.settings = settings(max_examples=40, stateful_step_count=60)
