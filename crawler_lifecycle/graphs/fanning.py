"""``fan_out``: builds a graph with one step for each item, for a graft to return."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from crawler_lifecycle.domain.bounds import refusal, travels
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.graph.checks import shown
from crawler_lifecycle.domain.graph.spec import NAME_MAX, STEPS_MAX

from .workflow import Workflow

#: Characters kept of a key that is too long for a step's name; a hash of the whole key follows.
_KEPT = 60


def fan_out(items: Iterable[Any], step: Callable[[Any], Any], *, key: str | Callable[[Any], Any]) -> Workflow:
    """Return a graph with one step for each item, which a graft can return. Raises ``InvalidRequest``.

    ``step`` gets an item and returns the job of its step: ``crawl(…)``, a worker's ``.new(…)``, or a function with its
    arguments, ``(function, {…})``. ``key`` is a field of the item, or a function of the item. Its value becomes the
    name of the step. Two items with the same name are refused, and so are more items than a graph may have steps. Items
    are read one by one.

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
            cure = f"give each step several items, or read the items in parts (limit={STEPS_MAX})"
            raise InvalidRequest(f"items: more than {STEPS_MAX} are too many for one graph; {cure}")
        if not callable(key) and (not isinstance(item, Mapping) or key not in item):
            raise refusal(f"item {number}", item, f"it has no field {key!r:.100}; name a field that each item has")
        value = key(item) if callable(key) else item[key]
        name = _name(value)
        if not name:
            raise refusal(f"key of item {number}", value, "give a text or a number that can name its step")
        if name in keys:
            cure = f"key {keys[name]!r:.100} already has the step {shown(name)}; use different keys"
            raise refusal(f"key of item {number}", value, cure)
        keys[name], what = value, step(item)
        job, args = what if isinstance(what, tuple) else (what, None)
        found.add(name, job, args=args)
    return found


def _name(value: Any) -> str:
    """Return the name of a step for this key; an empty text if the key cannot name a step."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    whole = str(value).strip()
    name = "".join(character if character.isprintable() and character != "/" else "_" for character in whole)
    if name and not travels(name, NAME_MAX):
        return f"{name[:_KEPT]}…{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:16]}"
    return name
