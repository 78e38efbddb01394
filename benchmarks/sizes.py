"""The size of a benchmark: its usual size, that of a variable, or the smallest at which it still
works.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T", int, float)

#: True in ``python3 -m tools bench-smoke``, which runs every benchmark in seconds. Its figures mean
#: nothing.
SMALL = os.environ.get("BENCHMARK_SMALL") == "1"


def size(usual: T, smallest: T, variable: str = "") -> T:
    """Return the size in this variable of the environment, else the smallest in a smoke test, else
    the usual one.
    """
    given = os.environ.get(variable)
    if given is not None:
        return type(usual)(given)
    return smallest if SMALL else usual
