"""A graph of steps that depend on each other. Try it: crawlctl graph start graphs:nightly
--watch
"""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.graphs import Workflow, crawl


def report(context: dict[str, Any]) -> str:
    """Return the result of the step. It is called when both crawls have ended."""
    return f"{context['small']['pages']} and {context['large']['pages']} pages"


def nightly(pages: str = "20") -> Workflow:
    """Build a graph of two parallel crawls, followed by a report about both."""
    return (
        Workflow("nightly")
        .add("small", crawl("demo", args={"pages": "5"}))
        .add("large", crawl("demo", args={"pages": pages}))
        .add_cascade("report", report, ["small", "large"])
    )
