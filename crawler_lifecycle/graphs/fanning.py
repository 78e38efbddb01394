"""``fan_out``: a graph with one step for each item, which a graft returns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from crawler_lifecycle.domain.bounds import refusal, travels
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.graph.checks import shown
from crawler_lifecycle.domain.graph.spec import NAME_MAX, STEPS_MAX

from .workflow import Workflow

#: Characters that stay of a key that is no name of a step as it is; a hash of the whole key comes behind them.
_KEPT = 60


def fan_out(items: Iterable[Any], step: Callable[[Any], Any], *, key: str | Callable[[Any], Any]) -> Workflow:
    """One step for each item, named by its key: a graph that a graft returns. Raises ``InvalidRequest``.

    ``step`` gets an item and returns what the step does: ``crawl(…)``, a worker's ``.new(…)``, or a function with its
    arguments, ``(function, {…})``. ``key``: the field, or a function of the item, whose value names the step; two items
    of one name are refused. Items are read one by one, and no more than a graph has steps.

    >>> from crawler_lifecycle.graphs import Workflow, crawl, current_job, fan_out
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def each(context):
    ...     shops = current_job().items("shops")
    ...     return fan_out(shops, lambda shop: crawl("shop", args={"url": shop["url"]}), key="url")
    >>> with in_memory(crawls={"shops": {"outcome": "finished", "items": [{"url": "a.com"}, {"url": "b.com"}]}}):
    ...     workflow = Workflow().add("shops", crawl("shops")).add_graft("each", each, "shops").start()
    ...     _ = workflow.wait()
    ...     print([job.path for job in workflow.all_jobs()])
    ['shops', 'each', 'each/a.com', 'each/b.com']
    """
    found, keys = Workflow(), dict[str, Any]()
    for number, item in enumerate(items):
        if number >= STEPS_MAX:
            cure = f"give each step several of them, or read them in parts (limit={STEPS_MAX})"
            raise InvalidRequest(f"items: more than {STEPS_MAX} are too many for one graph; {cure}")
        if not callable(key) and (not isinstance(item, Mapping) or key not in item):
            raise refusal(f"item {number}", item, f"it has no field {key!r:.100}; name one that each item has")
        value = key(item) if callable(key) else item[key]
        name = _name(value)
        if not name:
            raise refusal(f"key of item {number}", value, "give a text or a number that names it")
        if name in keys:
            raise refusal(f"key of item {number}", value, f"step {shown(name)} is that of {keys[name]!r:.100}")
        keys[name], what = value, step(item)
        job, args = what if isinstance(what, tuple) else (what, None)
        found.add(name, job, args=args)
    return found


def _name(value: Any) -> str:
    """The key as the name of a step; an empty text where it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    whole = str(value).strip()
    name = "".join(character if character.isprintable() and character != "/" else "_" for character in whole)
    if name and not travels(name, NAME_MAX):
        return f"{name[:_KEPT]}…{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:16]}"
    return name
