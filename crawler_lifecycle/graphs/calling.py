"""Calls the code of a step and interprets its return value, in a worker's process or in a test."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.starts import once
from crawler_lifecycle.domain.values import of_json

from .job import Cancel, Job, Record, Snooze, current_job, executing
from .workflow import Workflow


class NotCallable(InvalidRequest):
    """Raised if the code can never be called as the step requires; a retry cannot help."""


#: The meaning of a return value. A ``Workflow`` is attached below the step. After ``None``, the
#: step is completed without a result.
Meant = Cancel | Snooze | Record | Workflow | None


def execute(
    name: str,
    what: Mapping[str, Any],
    job: Job,
    context: Callable[[], dict[str, Any]],
    *,
    graft: bool,
) -> Meant:
    """Call the code with this name and return the meaning of its return value.

    ``what`` is the job in the step's spec. ``context`` returns the context of a cascade. ``graft``
    allows the code to return a graph. Raises ``NotCallable``, any error of the code, and
    ``TypeError`` for a return value that is not allowed.
    """
    executing(job)
    try:
        with once(job.key):
            return read(name, call(name, function(name), what, job, context), what, graft=graft)
    finally:
        executing(None)


def function(name: str) -> Any:
    """Return the function or class that ``module:qualname`` names.

    The function or class must be defined in the module itself. People who may send graphs may call
    the code that an author wrote, but not everything that the author's module imports. Raises
    ``NotCallable`` and any error of the module.
    """
    module_name, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise NotCallable(
            f"{name}: the module no longer has this name; define it again, or send another graph"
        )
    defined = (getattr(found, "__module__", None), getattr(found, "__qualname__", None))
    if defined != (module_name, qualname) or not callable(found):
        raise NotCallable(
            f"{name}: the module does not define this name; give the module that defines it"
        )
    return found


def call(
    name: str, code: Any, what: Mapping[str, Any], job: Job, context: Callable[[], dict[str, Any]]
) -> object:
    """Call the code as the job in the step's spec (``what``) requires, and return its return value.

    An awaitable is awaited to its end. Raises ``NotCallable`` and any error of the code.
    """
    style = what.get("style", "plain")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if style == "worker":
        name, args = f"{name}.process", [job]
        code = getattr(code(), "process", None) if isinstance(code, type) else None
        if not callable(code):
            raise NotCallable(
                f"{name}: it must be a class with a method process(self, job); define that "
                "method again"
            )
    elif style == "plain":
        kwargs = of_json(what.get("args", {}))
    else:
        args = [of_json(what.get("item")), context()] if style == "item" else [context()]
    _check_signature(name, code, args, kwargs)
    found = code(*args, **kwargs)
    if not inspect.isawaitable(found):
        return found
    import asyncio  # imported here because most functions are not async

    async def awaited() -> object:
        return await found

    return asyncio.run(awaited())


def read(name: str, found: object, what: Mapping[str, Any], *, graft: bool) -> Meant:
    """Return the meaning of a return value.

    Raises ``TypeError`` for a return value that is not allowed.
    """
    if inspect.iscoroutine(found):
        found.close()
        raise TypeError(
            f"{name} returned a coroutine that was never awaited; await it in the function"
        )
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        raise TypeError(f"{name} returned a generator, which is not executed; return a list")
    if isinstance(found, Workflow) and not graft:
        raise TypeError(
            f"{name} returned a Workflow, but the step is not a graft; add the step with add_graft"
        )
    if isinstance(found, Workflow) and found.id == current_job().graph:
        raise TypeError(
            f"{name} returned the graph that it belongs to; return a new Workflow, or None for "
            "nothing"
        )
    if isinstance(found, Cancel | Snooze | Record | Workflow):
        return found
    if found is None or what.get("style") == "worker" or not what.get("record", True):
        return None
    if graft:
        fix = "return a Workflow, or None for nothing"
        raise TypeError(f"{name} is a graft and returned {type(found).__name__}; {fix}")
    return Record(found)


def _check_signature(name: str, code: Any, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(code)
    except (TypeError, ValueError):  # code that is not written in Python may have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = (
            ", ".join(kwargs) or ("nothing", "one argument", "the item and the context")[len(args)]
        )
        raise NotCallable(
            f"{name}{signature}: {error}; the step passes {given}; change one of the two"
        ) from None
