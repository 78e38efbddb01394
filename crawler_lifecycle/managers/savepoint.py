"""Undoing what a hook did through its manager, and telling what it raised."""

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
from crawler_lifecycle.domain.managers.manager import STATE_BYTES

from .base import BaseScript
from .types import ClassError

_TEXT_MAX = 400


def where(error: BaseException) -> str:
    """Return what was raised, and the last line of the user's own code that led there."""
    try:
        said = str(error)
    except Exception:  # users write exceptions too
        said = "its text cannot be made"
    known = isinstance(error, ClassError | InvalidRequest)
    text = (said if known else f"{type(error).__name__}: {said}")[:_TEXT_MAX]
    ours = os.path.dirname(os.path.abspath(__file__))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.dirname(os.path.abspath(frame.filename)) != ours]
    rooms = tuple(f"crawler_lifecycle{os.sep}{room}{os.sep}" for room in ("domain", "plans"))
    own = [frame for frame in own if not any(room in frame.filename for room in rooms)]
    return f"{text} ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else text


def check_state(state: Any) -> None:
    """Raise ``InvalidRequest`` unless this can be kept as a manager's durable state."""
    if not isinstance(state, dict):
        raise InvalidRequest(f"self.state: a {type(state).__name__} is not allowed; keep a dictionary")
    try:
        size = len(json.dumps(state, allow_nan=False).encode())
        same = all(isinstance(name, str) for name in state)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"self.state: {error}; keep texts, numbers, lists and dictionaries of these") from None
    if not same:
        raise InvalidRequest("self.state: its names must be texts")
    if size > STATE_BYTES:
        raise InvalidRequest(f"self.state: {size} bytes of JSON are too much; keep at most {STATE_BYTES}")


def no_coroutine(method: str, answer: Any) -> Any:
    """The answer of a user's method that is called as an ordinary one."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ClassError(f"{method} is a coroutine, and nobody awaits it; make it an ordinary method (def)")
    return answer


@contextmanager
def undone_on_error(script: BaseScript) -> Iterator[None]:
    """Leave the decisions of the script as they were before when something is raised inside."""
    cycle = script._cycle
    window, state, stats = cycle.window.saved(), deepcopy(script.state), script.stats.get_stats()
    close_reason, flow_tags = script.close_reason, list(script._flow_tags)
    new_tags, coming = len(cycle.flow_tags), dict(cycle.coming)
    try:
        yield
    except (Exception, SystemExit):
        cycle.window.restore(window)
        script.state, script.close_reason, script._flow_tags = state, close_reason, flow_tags
        script.stats.restore(stats)
        del cycle.flow_tags[new_tags:]
        cycle.coming = coming
        raise
