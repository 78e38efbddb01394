"""The platform used by handles, and calls that work in both async and sync code.

The decorator ``asked`` makes such a call. If an event loop runs in the caller's thread, the call
returns a coroutine, and another thread does the work. Otherwise the call returns the result.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, cast

from crawler_lifecycle.domain.crawlers.importable import check_program
from crawler_lifecycle.domain.starts import offered

from .platform import Platform

Q = ParamSpec("Q")

_current: list[Platform] = []


def use(platform: Platform | None) -> Platform | None:
    """Set the platform for all handles in this process, and return the previous platform.

    ``None`` means the gateway that ``crawlctl`` would call.
    """
    former = _current[0] if _current else None
    _current[:] = [platform] if platform else []
    return former


def current() -> Platform:
    """Return the platform in use. The default is the worker of a manager's class, or the gateway
    that ``crawlctl`` would call. Raises ``PlatformUnavailable``, and ``InvalidRequest`` if a worker
    imports a module that starts or queries a graph at import time.
    """
    if not _current and (hosted := offered()) is not None:
        return cast(Platform, hosted)
    if not _current:
        check_program("a graph is started or queried")
        from .client import (
            Gateway,
        )  # this loads an HTTP client, which functions in a worker do not need

        _current.append(Gateway())
    return _current[0]


def asked(ask: Callable[Q, object]) -> Callable[Q, Any]:
    """Decorate a call so that it returns a coroutine in a running event loop, and the result of
    ``ask`` elsewhere.

    The coroutine does not block the event loop, because another thread calls ``ask``.
    """

    @functools.wraps(ask)
    def question(*args: Q.args, **kwargs: Q.kwargs) -> Any:
        # Asyncio is already loaded if an event loop is running. It is not imported here, to save
        # time.
        asyncio: Any = sys.modules.get("asyncio")
        if asyncio is None or asyncio._get_running_loop() is None:
            return ask(*args, **kwargs)
        return asyncio.to_thread(ask, *args, **kwargs)

    return question
