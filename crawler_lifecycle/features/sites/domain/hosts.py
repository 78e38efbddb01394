"""The hosts that a run visits, according to its request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crawler_lifecycle.domain.hosts import host_of
from crawler_lifecycle.domain.run import SITES_MAX


def hosts_of(
    sites: Sequence[str], args: Mapping[str, str], tasks: Sequence[Mapping[str, str]]
) -> set[str]:
    """Return the hosts that a run visits. ``tasks`` contains the arguments of each task.

    In ``sites``, ``{start_url}`` stands for the hosts in the values of this argument. A run with
    more than ``SITES_MAX`` hosts belongs to no site, and the result is empty. Raises
    ``InvalidRequest``, which names the field, the value and the fix.
    """
    hosts = set[str]()
    texts = set[str]()
    for field, text in _texts(sites, args, tasks):
        if text in texts:
            continue
        texts.add(text)
        hosts.add(host_of(text, field))
        if len(hosts) > SITES_MAX:
            return set()
    return hosts


def _texts(
    sites: Sequence[str], args: Mapping[str, str], tasks: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield each text that contains a host, after the field in which it was given."""
    for number, text in enumerate(sites):
        if not (text.startswith("{") and text.endswith("}")):
            yield f"sites[{number}]", text
            continue
        name = text[1:-1]
        if name in args:
            yield f"args.{name}", args[name]
        for index, task in enumerate(tasks):
            if name in task:
                yield f"tasks[{index}].args.{name}", task[name]
