"""Calls the code of a step, and reads what it returned. For host processes and for tests."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.graph.spec import GraphSpec
from crawler_lifecycle.domain.values import of_json

from .job import Job, executing
from .results import Cancel, Record, Snooze
from .workflow import Workflow


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call came to. Nothing of it: the step is completed."""

    cancel: Cancel | None = None
    snooze: Snooze | None = None
    record: Record | None = None
    graft: GraphSpec | None = None
    """To be attached below the step."""


def load(call: str) -> Any:
    """Import ``module:qualname``. Raises ``InvalidRequest`` when the module has no such thing, and what it raises."""
    module_name, _, name = call.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise InvalidRequest(f"{call}: the module has no {part!r}; bring it back, or retry with the new name")
    return found


def call(code: Any, job: Job, what: Mapping[str, Any], context: Mapping[str, Any], *, graft: bool = False) -> Returned:
    """Call the code of a step (``what``: its job in the spec) as its style says; a coroutine is run to its end.

    Raises what the code raises, and ``InvalidRequest`` for a result that makes no sense.
    """
    style = what.get("style", "plain")
    executing(job)
    try:
        found = _awaited(_called(code, style, job, what, context))
    finally:
        executing(None)
    return _read(found, style, graft, what.get("record", True))


def _called(code: Any, style: str, job: Job, what: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    if style == "worker":
        return code().process(job)
    if style == "item":
        return code(of_json(what.get("item")), dict(context))
    if style == "cascade":
        return code(dict(context))
    return code(**of_json(what.get("args", {})))


def _awaited(found: Any) -> Any:
    if not inspect.isawaitable(found):
        return found
    import asyncio  # only who needs it pays for it

    async def run() -> Any:
        return await found

    return asyncio.run(run())


def _read(found: Any, style: str, graft: bool, record: bool) -> Returned:
    if isinstance(found, Cancel):
        return Returned(cancel=found)
    if isinstance(found, Snooze):
        return Returned(snooze=found)
    if isinstance(found, Record):
        return Returned(record=found)
    if isinstance(found, Workflow):
        if not graft:
            raise InvalidRequest("it returned a Workflow, and only a step of add_graft may; add it with add_graft")
        return Returned(graft=found.spec())
    if style == "worker" or not record or (found is None and style == "plain"):
        return Returned()
    return Returned(record=Record(found))
