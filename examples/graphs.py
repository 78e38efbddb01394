"""A graph over the demonstration site: docs/graphs.md walks through it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from crawler_lifecycle.graphs import Workflow, crawl, current_job

#: Pages of each walk over the site.
WALKS = (2, 3)


def report(context: dict[str, Any]) -> dict[str, Any]:
    """What the walks found: a cascade gets how its direct dependencies ended, by their names."""
    walks = context["walks"].values()
    return {"day": datetime.now(UTC).date(), "pages": sum(one["pages"] or 0 for one in walks), "walks": len(walks)}


def publish(context: dict[str, Any]) -> str:
    """Put the report where people see it. In a shaky graph this fails at its first execution."""
    if context["mood"] == "shaky" and current_job().attempt == 1:
        raise RuntimeError("the shop window is closed")
    found: dict[str, Any] = context["report"]
    assert isinstance(found["day"], date), "what JSON has no word for comes back as what it was"
    return f"{found['pages']} pages on {found['day']:%A}"


def nightly(mood: str = "calm") -> Workflow:
    """One look at the site, then two walks at once, then their report, which is published."""
    walks = {str(pages): crawl("plain", args={"max_pages": str(pages), "delay": "0.1"}) for pages in WALKS}
    return (
        Workflow("nightly")
        .add_context({"mood": mood})
        .add("look", crawl("plain", args={"max_pages": "1"}))
        .add_many("walks", walks, "look")
        .add_cascade("report", report, "walks")
        .add_cascade("publish", publish, "report")
    )
