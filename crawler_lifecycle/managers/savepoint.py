"""Undoes the decisions of a hook that failed, and describes its error."""

from __future__ import annotations

import inspect
import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.managers.domain.manager import STATE_BYTES

from .base import BaseScript
from .types import ClassError

_TEXT_MAX = 400


def where(error: BaseException) -> str:
    """Return the message of an error, with file and line of the last call in the user's own
    code."""
    try:
        said = str(error)
    except Exception:  # ``__str__`` of a user's exception may fail
        said = "its message cannot be read"
    known = isinstance(error, ClassError | InvalidRequest)
    text = (said if known else f"{type(error).__name__}: {said}")[:_TEXT_MAX]
    ours = os.path.dirname(os.path.abspath(__file__))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.dirname(os.path.abspath(frame.filename)) != ours]
    rooms = tuple(f"crawler_lifecycle{os.sep}{room}{os.sep}" for room in ("domain", "features"))
    own = [frame for frame in own if not any(room in frame.filename for room in rooms)]
    return f"{text} ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else text


def check_state(state: Any) -> None:
    """Raise ``InvalidRequest`` unless this value can be stored as a manager's state."""
    if not isinstance(state, dict):
        raise InvalidRequest(
            f"self.state: a {type(state).__name__} is not allowed; use a dictionary"
        )
    try:
        size = len(json.dumps(state, allow_nan=False).encode())
        same = all(isinstance(name, str) for name in state)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"self.state: {error}; use only strings, numbers, lists and dictionaries"
        ) from None
    if not same:
        raise InvalidRequest("self.state: a name is not allowed; all names must be strings")
    if size > STATE_BYTES:
        raise InvalidRequest(
            f"self.state: {size} bytes of JSON are too many; keep at most {STATE_BYTES}"
        )


def no_coroutine(method: str, answer: Any) -> Any:
    """Return a user method's result. Raises ``ClassError`` if the result is a coroutine."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ClassError(
            f"{method} is a coroutine, which is not awaited; make it an ordinary method (def)"
        )
    return answer


@contextmanager
def undone_on_error(script: BaseScript) -> Iterator[None]:
    """Restore the earlier decisions of the script if the ``with`` block raises an error."""
    cycle = script._cycle
    window = cycle.window.saved()
    state = deepcopy(script.state)
    stats = script.stats.get_stats()
    close_reason = script.close_reason
    flow_tags = list(script._flow_tags)
    new_tags = len(cycle.flow_tags)
    coming = dict(cycle.coming)
    try:
        yield
    except (Exception, SystemExit):
        cycle.window.restore(window)
        script.state = state
        script.close_reason = close_reason
        script._flow_tags = flow_tags
        script.stats.restore(stats)
        del cycle.flow_tags[new_tags:]
        cycle.coming = coming
        raise
