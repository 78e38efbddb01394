"""Graphs over the demonstration site, which docs/first-graph.md explains; the story proves the
second one.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import urlsplit

from crawler_lifecycle.graphs import NewJob, Workflow, crawl, current_job, fan_out

#: Pages of each walk over the site.
WALKS = (2, 3)


def report(context: dict[str, Any]) -> dict[str, Any]:
    """What the walks found: a cascade gets how its direct dependencies ended, by their names."""
    walks = context["walks"].values()
    return {
        "day": datetime.now(UTC).date(),
        "pages": sum(one["pages"] or 0 for one in walks),
        "walks": len(walks),
    }


def publish(context: dict[str, Any]) -> str:
    """Put the report where people see it. In a shaky graph this fails at its first execution."""
    if context["mood"] == "shaky" and current_job().attempt == 1:
        raise RuntimeError("the shop window is closed")
    found: dict[str, Any] = context["report"]
    assert isinstance(found["day"], date), "what JSON has no word for comes back as what it was"
    return f"{found['pages']} pages on {found['day']:%A}"


def nightly(mood: str = "calm") -> Workflow:
    """One poll the site, then two walks at once, then their report, which is published."""
    walks = {
        str(pages): crawl("plain", args={"max_pages": str(pages), "delay": "0.1"})
        for pages in WALKS
    }
    return (
        Workflow("nightly")
        .add_context({"mood": mood})
        .add("look", crawl("plain", args={"max_pages": "1"}))
        .add_many("walks", walks, "look")
        .add_cascade("report", report, "walks")
        .add_cascade("publish", publish, "report")
    )


def each_page(context: dict[str, Any]) -> Workflow:
    """One crawl for each page that the poll has found, named by its path."""
    pages = current_job().items("look", fields=["url"])
    return fan_out(pages, _walk_from, key=lambda page: urlsplit(page["url"]).path)


def _walk_from(page: dict[str, Any]) -> NewJob:
    return crawl("plain", args={"site": page["url"], "max_pages": "2", "delay": "0.1"})


def merge(context: dict[str, Any]) -> dict[str, str]:
    """The title of each page that any of these crawls has seen."""
    return {
        item["url"]: item["title"] for item in current_job().items("pages", fields=["url", "title"])
    }


def shelve(context: dict[str, Any]) -> str:
    """Put the titles where people see them."""
    return "\n".join(sorted(set(context["merge"].values())))


def titles(pages: str = "3", site: str | None = None) -> Workflow:
    """A poll some pages, one crawl for each of them, their items merged, and the result
    published.
    """
    return (
        Workflow("titles")
        .add("look", crawl("plain", args={"site": site, "max_pages": pages, "delay": "0.1"}))
        .add_graft("pages", each_page, "look")
        .add_cascade("merge", merge, "pages")
        .add_cascade("publish", shelve, "merge")
    )
