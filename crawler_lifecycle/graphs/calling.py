"""Calls the code of a step, and reads what it returned: in a worker's process, and in a test."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.values import of_json

from .job import Cancel, Job, Record, Snooze, current_job, executing
from .workflow import Workflow


class NotCallable(InvalidRequest):
    """This code cannot be called as the step says, however often it is tried."""


#: What a call came to: a graph is to be attached below the step; after ``None`` that is completed and records nothing.
Meant = Cancel | Snooze | Record | Workflow | None


def execute(
    name: str, what: Mapping[str, Any], job: Job, context: Callable[[], dict[str, Any]], *, graft: bool
) -> Meant:
    """Return what is meant by what the code of this name returns, which is called as the job of its spec (``what``)
    says.

    ``context`` gives what a cascade gets. ``graft``: whether it may return a graph. Raises ``NotCallable``, what the
    code raises, and ``TypeError`` for an answer that makes no sense.
    """
    executing(job)
    try:
        return read(name, call(name, function(name), what, job, context), what, graft=graft)
    finally:
        executing(None)


def function(name: str) -> Any:
    """Return what ``module:qualname`` names: a function, or a class. Raises ``NotCallable``, and whatever the module
    raises.

    Only what is defined in the module itself: whoever may send a graph may call what its author wrote to be called, and
    not all that it imports.
    """
    module_name, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise NotCallable(f"{name}: the module has nothing of this name now; bring it back, or send another graph")
    place = (getattr(found, "__module__", None), getattr(found, "__qualname__", None))
    if place != (module_name, qualname) or not callable(found):
        raise NotCallable(f"{name}: it is no function or class that this module defines; name it where it is defined")
    return found


def call(name: str, code: Any, what: Mapping[str, Any], job: Job, context: Callable[[], dict[str, Any]]) -> object:
    """Return what the code returns, when it is called as the job of its spec (``what``) says; async code is run to its
    end.

    Raises ``NotCallable``, and what the code raises.
    """
    style = what.get("style", "plain")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if style == "worker":
        name, args = f"{name}.process", [job]
        code = getattr(code(), "process", None) if isinstance(code, type) else None
        if not callable(code):
            raise NotCallable(f"{name}: it is no class with a method process(self, job); bring that back")
    elif style == "plain":
        kwargs = of_json(what.get("args", {}))
    else:
        args = [of_json(what.get("item")), context()] if style == "item" else [context()]
    _check_signature(name, code, args, kwargs)
    found = code(*args, **kwargs)
    if not inspect.isawaitable(found):
        return found
    import asyncio  # whoever writes no async function need not load it

    async def awaited() -> object:
        return await found

    return asyncio.run(awaited())


def read(name: str, found: object, what: Mapping[str, Any], *, graft: bool) -> Meant:
    """Return what is meant by what the code returned. Raises ``TypeError`` for what makes no sense."""
    if inspect.iscoroutine(found):
        found.close()
        raise TypeError(f"{name} returned a coroutine, of which nothing was executed; await it")
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        raise TypeError(f"{name} returned a generator, of which nothing was executed; return a list")
    if isinstance(found, Workflow) and not graft:
        raise TypeError(f"{name} returned a Workflow and is no graft; add it with add_graft")
    if isinstance(found, Workflow) and found.id == current_job().graph:
        raise TypeError(f"{name} returned the graph that it is in; return a new Workflow, or None for nothing")
    if isinstance(found, Cancel | Snooze | Record | Workflow):
        return found
    if found is None or what.get("style") == "worker" or not what.get("record", True):
        return None
    if graft:
        cure = "return a Workflow, or None for nothing"
        raise TypeError(f"{name} grafts, and returned {type(found).__name__}; {cure}")
    return Record(found)


def _check_signature(name: str, code: Any, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(code)
    except (TypeError, ValueError):  # one that is not written in Python
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join(kwargs) or ("nothing", "one argument", "the item and the context")[len(args)]
        raise NotCallable(f"{name}{signature}: {error}; the step gives it {given}") from None
