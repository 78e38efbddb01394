"""A crawl manager for the demonstration site. docs/first-manager.md explains it, and the story
proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crawler_lifecycle.managers import GeneratorCrawlManager

#: The number of pages of each crawl. Two of the numbers occur twice, and are crawled once.
PAGES = (3, 2, 3, 1, 2)


class Walks(GeneratorCrawlManager):
    """Crawls the site with different numbers of pages, with two crawls at a time."""

    name = "walks"
    spider = "plain"
    loop_mode = 60
    default_max_jobs = 2
    MAX_RETRIES = 1

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        """Yield one crawl for each number of pages."""
        for pages in PAGES:
            yield {"spider_args": {"max_pages": str(pages), "delay": "0.1"}}

    def finished_metadata_hook(self, jobkey: str, metadata: Any) -> None:
        """Record the pages that the crawl itself wrote. It is called once for each end, and its
        result is saved with the end.
        """
        self.state["items"] = self.state.get("items", 0) + (metadata["items"] or 0)

    def finished_ok_hook(
        self, spider: str, outcome: str, job_args_override: Any, jobkey: str
    ) -> None:
        """Record the longest page of all crawls, read from their items. It is called after the
        previous hook for an end without failure.
        """
        words = (item["words"] for item in self.items(jobkey, fields=["words"]))
        self.state["longest"] = max([self.state.get("longest", 0), *words])


if __name__ == "__main__":
    Walks().run()
