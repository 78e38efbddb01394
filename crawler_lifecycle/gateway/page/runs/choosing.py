"""Links of the list of runs: to its filters with the values that exist, to its orders, and to lists that many need.

Each link is the address of the list with one thing changed, so all of it works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.run import RunStatus, Trigger
from crawler_lifecycle.gateway.page.parts.rendering import query
from crawler_lifecycle.store.runs.search import SORTS

Asked = Mapping[str, Any]
"""The filters of the address that are set."""
_FACETS = {"status": "Status", "crawler": "Crawler", "outcome": "Outcome", "tag": "Tag", "flow_id": "Flow"}
_FACETS |= {"pool": "Pool", "trigger": "Trigger"}
_WORDS = _FACETS | {"search": "Text", "attention": "Needs attention", "created_from": "From", "created_until": "Until"}
_WORDS |= {"sort": "Order"}
_SORTED = {"verified_at": "checked", "started_at": "started"}
#: Filters with a field of their own in the form. The others are kept in it, hidden.
FIELDS = ("search", "created_from", "created_until")
#: Columns whose largest values people want first.
_LARGEST = ("verified_at", "pages", "items", "errors", "started_at", "took")
#: The statuses of runs that have not ended.
LIVE = [status.value for status in RunStatus if not status.terminal]


@dataclass(frozen=True, slots=True)
class Choice:
    """A link with its text, and whether it shows what is chosen now."""

    word: str
    href: str
    on: bool


def pairs(asked: Asked) -> Iterator[tuple[str, Any]]:
    """Yield each filter with its value, or with each of its values."""
    for name, value in asked.items():
        yield from ((name, one) for one in (value if isinstance(value, list) else [value]))


def facets(asked: Asked, known: Mapping[str, Sequence[str]]) -> dict[str, list[Choice]]:
    """Return the values that exist of each filter, by its word. Those that are chosen are among them."""
    values: dict[str, Sequence[str]] = {"status": list(RunStatus), "trigger": list(Trigger), **known}
    found = {}
    for name, word in _FACETS.items():
        chosen = [str(value) for one, value in pairs(asked) if one == name]
        every = [*(one for one in chosen if one not in values.get(name, ())), *map(str, values.get(name, ()))]
        if name in values or chosen:
            found[word] = [Choice(one, _link(asked, name, one, one in chosen), one in chosen) for one in every]
    return found


def chips(asked: Asked) -> list[tuple[str, str, str]]:
    """Return each filter that is set: its word, its value, and the link to the list without it."""
    return [
        (_WORDS.get(n, n.capitalize()), _worded(n, value), _link(asked, n, value, True)) for n, value in pairs(asked)
    ]


def _worded(name: str, value: Any) -> str:
    if name == "sort":
        column = _SORTED.get(value.removeprefix("-"), value.removeprefix("-"))
        return f"{column}, largest first" if value.startswith("-") else column
    return "" if value is True else str(value)


def sorts(asked: Asked) -> dict[str, tuple[str, str | None]]:
    """Return the link of each column that can be put in order, and its order now for ``aria-sort``."""
    found, now = dict[str, tuple[str, str | None]](), asked.get("sort", "")
    for name in SORTS:
        turns = [f"-{name}", name] if name in _LARGEST else [name, f"-{name}"]
        order = {name: "ascending", f"-{name}": "descending"}.get(now)
        turn = turns[1] if now == turns[0] else None if now == turns[1] else turns[0]
        found[name] = ("/" + query({**asked, "sort": turn}), order)
    return found


def presets(asked: Asked) -> list[Choice]:
    """Return links to the lists that many need."""
    lists: dict[str, dict[str, Any]] = {"All": {}, "Live": {"status": LIVE}, "Failed": {"status": ["FAILED"]}}
    lists["Needs attention"] = {"attention": True}
    return [Choice(word, "/" + query(one), dict(asked) == one) for word, one in lists.items()]


def _link(asked: Asked, name: str, value: Any, chosen: bool) -> str:
    """Return the address with this value added, or without it if it is chosen."""
    if name in ("status", "tag"):
        others = [one for one in asked.get(name, ()) if one != value]
        return "/" + query({**asked, name: others if chosen else [*others, value]})
    return "/" + query({**asked, name: None if chosen else value})
