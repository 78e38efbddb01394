"""Graphs for the demonstration site. docs/first-graph.md explains them, and the story proves the
second graph.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import urlsplit

from crawler_lifecycle.graphs import NewJob, Workflow, crawl, current_job, fan_out

#: The number of pages of each crawl of the site.
WALKS = (2, 3)


def report(context: dict[str, Any]) -> dict[str, Any]:
    """Return a report about the results of the crawls. A cascade gets the ends of its direct
    dependencies by their names.
    """
    walks = context["walks"].values()
    return {
        "day": datetime.now(UTC).date(),
        "pages": sum(one["pages"] or 0 for one in walks),
        "walks": len(walks),
    }


def publish(context: dict[str, Any]) -> str:
    """Publish the report for people. In a shaky graph, the first execution fails."""
    if context["mood"] == "shaky" and current_job().attempt == 1:
        raise RuntimeError("the shop window is closed")
    found: dict[str, Any] = context["report"]
    assert isinstance(found["day"], date), "what JSON has no word for comes back as what it was"
    return f"{found['pages']} pages on {found['day']:%A}"


def nightly(mood: str = "calm") -> Workflow:
    """Build a graph: one crawl of the front page, then two parallel crawls, then a report about
    them, which is published.
    """
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
    """Add a crawl for each page that the first crawl has found, named by its path."""
    pages = current_job().items("look", fields=["url"])
    return fan_out(pages, _walk_from, key=lambda page: urlsplit(page["url"]).path)


def _walk_from(page: dict[str, Any]) -> NewJob:
    return crawl("plain", args={"site": page["url"], "max_pages": "2", "delay": "0.1"})


def merge(context: dict[str, Any]) -> dict[str, str]:
    """Return the title of each page that any of these crawls has found."""
    return {
        item["url"]: item["title"] for item in current_job().items("pages", fields=["url", "title"])
    }


def shelve(context: dict[str, Any]) -> str:
    """Publish the titles for people."""
    return "\n".join(sorted(set(context["merge"].values())))


def titles(pages: str = "3", site: str | None = None) -> Workflow:
    """Build a graph: one crawl of some pages, a crawl for each of these pages, and the merged
    items, which are published.
    """
    return (
        Workflow("titles")
        .add("look", crawl("plain", args={"site": site, "max_pages": pages, "delay": "0.1"}))
        .add_graft("pages", each_page, "look")
        .add_cascade("merge", merge, "pages")
        .add_cascade("publish", shelve, "merge")
    )
