"""Calls to the kernel for our own process. Linux; standard library only, because the supervisor loads it."""

from __future__ import annotations

import contextlib
import ctypes

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def hide() -> bool:
    """Keep our environment and memory in /proc from processes of the same user (not from root); whether that worked.

    They hold secrets, and crawlers of the local cluster may be of our user. What we execute is readable again.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> bool:
    """Become the parent of whatever leaves the tree of our children: nothing gets out of it. Whether that worked."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such call here: another system, another libc
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    return False
