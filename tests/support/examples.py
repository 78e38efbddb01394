"""The number of Hypothesis examples for a property: the same fixed ones every time, or many new
ones in a search.

``HYPOTHESIS_PROFILE`` chooses: ``ours`` by default, ``thorough`` for all of them (``make
test-all``), ``search`` for ``python3 -m tools fuzz``.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ours")
#: How many times more examples a search tries.
SEARCHES_MORE = 20


def examples(count: int) -> int:
    """Return settings for a property with its own number: ``count``, far more in a search, a fifth
    by default.
    """
    if PROFILE == "search":
        return count * SEARCHES_MORE
    return max(count // 5, min(count, 10)) if PROFILE == "ours" else count


def load_profile() -> None:
    """Make the chosen profile that of every test that is collected after this."""
    # No change causes what random examples find, so only a search draws at random, or stores what
    # it found.
    fixed = settings(
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.register_profile("ours", parent=fixed, max_examples=examples(100))
    settings.register_profile("thorough", parent=fixed, max_examples=300)
    settings.register_profile(
        "search",
        parent=fixed,
        derandomize=False,
        max_examples=examples(100),
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    )
    settings.load_profile(PROFILE)
