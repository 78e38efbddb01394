"""The links of a list: to its filters with the values that exist, to its orders, and to commonly
needed lists.

Each link is the address of the list with one change, so that everything works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.status_words import shown_status
from crawler_lifecycle.gateway.api.paging import Paging
from crawler_lifecycle.subjects import Subject

from .rendering import next_page, query

Asked = Mapping[str, Any]
"""The filters that the address sets."""
#: The statuses of runs and managers that have not ended.
LIVE = [status.value for status in RunStatus if not status.terminal]
#: The tabs of two lists that share a link in the navigation.
WORK_TABS = ("Graphs and managers", (("/graphs", "Graphs"), ("/managers", "Managers")))
CAPACITY_TABS = ("Capacity", (("/pools", "Pools"), ("/sites", "Sites")))
TRUTH_TABS = ("Truth", (("/corrections", "Corrections"), ("/audit", "Audit")))
#: Menus with more values than this also have an input field.
LONG_MENU = 12
_WORDS = {
    "search": "Text",
    "sort": "Order",
    "flow_id": "Flow",
    "attention": "Needs attention",
    "superseded": "Also replaced tasks",
    "troubled": "Last due time missed or failed",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A link with its text, and whether it is selected now."""

    word: str
    href: str
    on: bool


@dataclass(frozen=True, slots=True)
class Facet:
    """The menu of a filter: its existing values, and an input field if there may be more values."""

    name: str
    word: str
    choices: Sequence[Choice]
    typed: bool
    hidden: Sequence[tuple[str, Any]]
    """The other filters, which the form of the input field keeps."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """The list of a subject in the web UI: its address, its columns, and its choices."""

    subject: Subject
    path: str
    about: str = ""
    """A description of the fields that a search compares. Without it, there is no search."""
    facets: Mapping[str, str] = field(default_factory=dict)
    """The label of each filter whose values are offered."""
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The values of the filters with fixed values."""
    sorts: Mapping[str, str] = field(default_factory=dict)
    """The title of each column by which the list can be sorted."""
    presets: Mapping[str, Asked] = field(default_factory=dict)
    """Commonly needed lists."""
    several: Sequence[str] = ()
    """Filters that can have several values."""
    largest: Sequence[str] = ()
    """Columns whose largest values are shown first."""
    typed: Sequence[str] = ()
    """Filters that accept any value."""
    times: Mapping[str, str] = field(default_factory=dict)
    """The label of each filter that is a time."""
    title: str = ""
    """The title of the page, if it is not the plural of the subject."""
    intro: str = ""
    """A sentence about the list."""
    tabs: tuple[str, Sequence[tuple[str, str]]] | None = None
    """The label of the tabs above the list, and the address and title of each."""
    links: Sequence[tuple[str, str, str]] = ()
    """Links next to the title: the operation that the caller must be allowed to carry out, if any,
    the address, and the text.
    """

    newest_first: bool = False

    @property
    def heading(self) -> str:
        """The title of the page."""
        return self.title or self.subject.plural.capitalize()

    def shown(
        self, filters: Paging, known: Mapping[str, Sequence[str]], token: str | None
    ) -> dict[str, Any]:
        """Return the values for ``list.html`` and for the column headings.

        ``known`` has the existing values of filters.
        """
        asked = filters.model_dump(
            mode="json", exclude_defaults=True, exclude={"page_token", "all"}
        )
        more = next_page(filters, token, "all")
        return {
            "chooser": self,
            "asked": asked,
            "more": more and self.path + more,
            "csv": self.path + query({**asked, "format": "csv"}),
            "facets": [
                self._facet(name, asked, {**self.values, **known}.get(name)) for name in self.facets
            ],
            "chips": self._chips(asked),
            "sorts": self._sorts(asked),
            "hidden": _hidden(asked, "search"),
            "hidden_times": _hidden(asked, *self.times),
            "views": [
                Choice(word, self.path + query(preset), dict(asked) == preset)
                for word, preset in self.presets.items()
            ],
        }

    def _facet(self, name: str, asked: Asked, known: Sequence[str] | None) -> Facet:
        """Return the menu of a filter, with its existing values and the selected ones."""
        chosen = [str(value) for key, value in _pairs(asked) if key == name]
        values = [str(value) for value in known or ()]
        every = [*(value for value in chosen if value not in values), *values]
        choices = [
            Choice(
                self._worded(name, value),
                self._link(asked, name, value, value in chosen),
                value in chosen,
            )
            for value in every
        ]
        typed = name in self.typed or len(values) > LONG_MENU
        others = _hidden(asked, *(() if name in self.several else (name,)))
        return Facet(name, self.facets[name], choices, typed, others)

    def _chips(self, asked: Asked) -> list[tuple[str, str, str]]:
        """Return each filter that is set: its label, its value, and the link to the list without
        this filter.
        """
        words = {**_WORDS, **self.facets, **self.times}
        return [
            (
                words.get(n, n.capitalize()),
                self._worded(n, value),
                self._link(asked, n, value, True),
            )
            for n, value in _pairs(asked)
        ]

    def _worded(self, name: str, value: Any) -> str:
        if name == "sort":
            column = self.sorts[value.removeprefix("-")].lower()
            return f"{column}, largest first" if value.startswith("-") else column
        if name in ("state", "status"):
            return str(shown_status(value))
        return "" if value is True else str(value)

    def _sorts(self, asked: Asked) -> dict[str, tuple[str, str | None]]:
        """Return the link of each column by which the list can be sorted, by its title, and its
        present order for ``aria-sort``.
        """
        found = dict[str, tuple[str, str | None]]()
        now = asked.get("sort", "")
        for name, title in self.sorts.items():
            turns = [f"-{name}", name] if name in self.largest else [name, f"-{name}"]
            order = {name: "ascending", f"-{name}": "descending"}.get(now)
            turn = turns[1] if now == turns[0] else None if now == turns[1] else turns[0]
            found[title] = (self.path + query({**asked, "sort": turn}), order)
        return found

    def _link(self, asked: Asked, name: str, value: Any, chosen: bool) -> str:
        """Return the address with this value added, or removed if it is already selected."""
        if name in self.several:
            others = [other for other in asked.get(name, ()) if other != value]
            return self.path + query({**asked, name: others if chosen else [*others, value]})
        return self.path + query({**asked, name: None if chosen else value})


def _hidden(asked: Asked, *without: str) -> list[tuple[str, Any]]:
    """Return the filters that a form keeps in hidden fields."""
    return [(name, value) for name, value in _pairs(asked) if name not in without]


def _pairs(asked: Asked) -> Iterator[tuple[str, Any]]:
    """Yield each filter with its value, or once with each of its values."""
    for name, value in asked.items():
        yield from ((name, item) for item in (value if isinstance(value, list) else [value]))
