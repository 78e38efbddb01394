"""The links of a list: to its filters with the values that exist, to its orders, and to commonly
needed lists.

Each link is the address of the list with one change, so that everything works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.gateway.api.lists import ResultPage
from crawler_lifecycle.gateway.api.paging import SearchParameters
from crawler_lifecycle.gateway.ui.parts.rendering import next_page, query
from crawler_lifecycle.subjects import Subject, total_words

Asked = Mapping[str, Any]
"""The filters that the address sets."""
#: The statuses of runs and managers that have not ended.
LIVE = [status.value for status in RunStatus if not status.terminal]
_WORDS = {
    "search": "Text",
    "sort": "Order",
    "flow_id": "Flow",
    "attention": "Needs attention",
    "created_from": "From",
    "created_until": "Until",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A link with its text, and whether it is selected now."""

    word: str
    href: str
    on: bool


@dataclass(frozen=True, slots=True)
class Chooser:
    """The choices in the list of a subject. ``path`` is the address of the list in the web UI."""

    subject: Subject
    path: str
    about: str
    """A description of the fields that a search compares."""
    facets: Mapping[str, str]
    """The label of each filter whose values are offered."""
    values: Mapping[str, Sequence[str]]
    """The values of the filters with fixed values."""
    sorts: Mapping[str, str]
    """The title of each column by which the list can be sorted."""
    presets: Mapping[str, Asked]
    """Commonly needed lists."""
    several: Sequence[str] = ()
    """Filters that can have several values."""
    largest: Sequence[str] = ()
    """Columns whose largest values are shown first."""
    fields: Sequence[str] = ("search",)
    """Filters with a field of their own in the form. The form keeps all other filters in hidden
    fields.
    """

    def shown(
        self, filters: SearchParameters, known: Mapping[str, Sequence[str]], token: str | None
    ) -> dict[str, Any]:
        """Return the values for ``list_tools.html`` and for the column headings.

        ``known`` has the existing values of filters.
        """
        asked = filters.model_dump(
            mode="json", exclude_defaults=True, exclude={"page_token", "all"}
        )
        more = next_page(filters, token, "all")
        return {
            "chooser": self,
            "asked": asked,
            "filters": filters,
            "more": more and self.path + more,
            "facets": self._facets(asked, known),
            "chips": self._chips(asked),
            "sorts": self._sorts(asked),
            "hidden": [(name, value) for name, value in _pairs(asked) if name not in self.fields],
            "views": [
                Choice(word, self.path + query(one), dict(asked) == one)
                for word, one in self.presets.items()
            ],
        }

    def listed(
        self,
        filters: SearchParameters,
        page: ResultPage,
        total: tuple[int, bool],
        acts: Sequence[str],
    ) -> dict[str, Any]:
        """Return the values for ``list.html``. ``acts`` has the actions that the caller may apply
        to selected rows.
        """
        rows = [one.model_dump() for one in getattr(page, self.subject.plural)]
        own = {"rows": rows, "note": page.note, "total": total_words(*total), "acts": acts}
        return self.shown(filters, {}, page.next_page_token) | own

    def _facets(self, asked: Asked, known: Mapping[str, Sequence[str]]) -> dict[str, list[Choice]]:
        """Return the existing values of each filter, including the selected ones, by its label."""
        values = {**self.values, **known}
        found = {}
        for name, word in self.facets.items():
            chosen = [str(value) for one, value in _pairs(asked) if one == name]
            every = [
                *(one for one in chosen if one not in values.get(name, ())),
                *map(str, values.get(name, ())),
            ]
            if name in values or chosen:
                found[word] = [
                    Choice(
                        self._worded(name, one),
                        self._link(asked, name, one, one in chosen),
                        one in chosen,
                    )
                    for one in every
                ]
        return found

    def _chips(self, asked: Asked) -> list[tuple[str, str, str]]:
        """Return each filter that is set: its label, its value, and the link to the list without
        it.
        """
        words = {**_WORDS, **self.facets}
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
        return "" if value is True else str(state_word(value) if name == "state" else value)

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
        """Return the address with this value added, or without it if it is selected."""
        if name in self.several:
            others = [one for one in asked.get(name, ()) if one != value]
            return self.path + query({**asked, name: others if chosen else [*others, value]})
        return self.path + query({**asked, name: None if chosen else value})


def _pairs(asked: Asked) -> Iterator[tuple[str, Any]]:
    """Yield each filter with its value, or once with each of its values."""
    for name, value in asked.items():
        yield from ((name, one) for one in (value if isinstance(value, list) else [value]))
