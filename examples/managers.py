"""A crawl manager over the demonstration site, which docs/first-manager.md explains and the story
proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crawler_lifecycle.managers import GeneratorCrawlManager

#: Pages of each crawl; two of them come twice, and are crawled once.
PAGES = (3, 2, 3, 1, 2)


class Walks(GeneratorCrawlManager):
    """Crawls the site in walks of different length, two at a time."""

    name = "walks"
    spider = "plain"
    loop_mode = 60
    default_max_jobs = 2
    MAX_RETRIES = 1

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        """One walk for each length."""
        for pages in PAGES:
            yield {"spider_args": {"max_pages": str(pages), "delay": "0.1"}}

    def finished_metadata_hook(self, jobkey: str, metadata: Any) -> None:
        """Called once for each end, and kept with it: pages by what the crawl wrote itself."""
        self.state["items"] = self.state.get("items", 0) + (metadata["items"] or 0)

    def finished_ok_hook(
        self, spider: str, outcome: str, job_args_override: Any, jobkey: str
    ) -> None:
        """Called after it for an end without failure: the longest page of all walks, read from
        their items.
        """
        words = (item["words"] for item in self.items(jobkey, fields=["words"]))
        self.state["longest"] = max([self.state.get("longest", 0), *words])


if __name__ == "__main__":
    Walks().run()
