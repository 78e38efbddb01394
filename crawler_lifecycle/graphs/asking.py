"""The platform that a handle asks: each question can be awaited and can be a plain call.

One rule decides (``asked``): where an event loop runs in this thread, a question is a coroutine, and another thread
asks; elsewhere it is the answer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

from crawler_lifecycle.domain.crawlers.importable import check_program

from .platform import Platform

Q = ParamSpec("Q")

_current: list[Platform] = []


def use(platform: Platform | None) -> Platform | None:
    """Have every handle of this process ask this one (``None``: the gateway that is found); the former one."""
    former = _current[0] if _current else None
    _current[:] = [platform] if platform else []
    return former


def current() -> Platform:
    """The one that is in use, else the gateway that ``crawlctl`` would call. Raises ``PlatformUnavailable``, and
    ``InvalidRequest`` where a worker imports the module that asks."""
    if not _current:
        check_program("a graph is started or asked")
        from .client import Gateway  # with its HTTP client, which a function in a worker can do without

        _current.append(Gateway())
    return _current[0]


def asked(ask: Callable[Q, object]) -> Callable[Q, Any]:
    """The same as a question: its answer; within a running event loop a coroutine that gives it, which holds up nothing
    else there."""

    @functools.wraps(ask)
    def question(*args: Q.args, **kwargs: Q.kwargs) -> Any:
        asyncio: Any = sys.modules.get("asyncio")  # whoever runs a loop has it; others need not load it
        if asyncio is None or asyncio._get_running_loop() is None:
            return ask(*args, **kwargs)
        return asyncio.to_thread(ask, *args, **kwargs)

    return question
