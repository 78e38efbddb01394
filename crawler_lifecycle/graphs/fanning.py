"""``fan_out`` builds a graph with one step for each item, which a graft can return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.graphs.domain.spec import STEPS_MAX

from .workflow import Workflow


def fan_out(
    items: Iterable[Any], step: Callable[[Any], Any], *, key: str | Callable[[Any], Any]
) -> Workflow:
    """Return a graph with one step for each item, which a graft can return.

    Raises ``InvalidRequest``.

    ``step`` gets an item and returns the job of its step: ``crawl(…)``, a worker's ``.new(…)``, or
    a function with its arguments, ``(function, {…})``. ``key`` is a field of the item, or a
    function of the item. The value of ``key`` becomes the name of the step. Two items with the same
    name are refused, as are more items than a graph can have steps. Items are read one by one.

    >>> from crawler_lifecycle.graphs import Workflow, crawl, current_job, fan_out
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def each(context):
    ...     shops = current_job().items("shops")
    ...     return fan_out(shops, lambda shop: crawl("shop", args={"url": shop["url"]}), key="url")
    >>> shops = {"outcome": "finished", "items": [{"url": "a.com"}, {"url": "b.com"}]}
    >>> workflow = Workflow().add("shops", crawl("shops")).add_graft("each", each, "shops")
    >>> with in_memory(crawls={"shops": shops}):
    ...     _ = workflow.start().wait()
    ...     print([job.path for job in workflow.all_jobs()])
    ['shops', 'each', 'each/a.com', 'each/b.com']
    """
    found = Workflow()
    for number, item in enumerate(items):
        if number >= STEPS_MAX:
            fix = f"give each step several items, or read the items in parts (limit={STEPS_MAX})"
            raise InvalidRequest(f"items: more than {STEPS_MAX} are too many for one graph; {fix}")
        if not callable(key) and (not isinstance(item, Mapping) or key not in item):
            raise refusal(
                f"item {number}",
                item,
                f"it has no field {key!r:.100}; name a field that every item has",
            )
        value = key(item) if callable(key) else item[key]
        where = f"key of item {number}"
        whole = str(value).strip()
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not whole:
            raise refusal(where, value, "give a string or a number that can name its step")
        name = found.name_of(whole, where)
        what = step(item)
        job, args = what if isinstance(what, tuple) else (what, None)
        found.add(name, job, args=args)
    return found
