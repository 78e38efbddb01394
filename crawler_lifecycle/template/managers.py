"""A crawl manager, which starts many runs, a few at a time.

Try it: crawlctl manager start managers:Sizes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crawler_lifecycle.managers import GeneratorCrawlManager


class Sizes(GeneratorCrawlManager):
    """Runs the crawler `demo` once for each size, two at a time.

    A run that fails is tried once more.
    """

    name = "sizes"
    spider = "demo"
    loop_mode = 60  # seconds between two polls; the end of a run is noticed at once
    default_max_jobs = 2
    MAX_RETRIES = 1

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        """Yield the parameters of each run."""
        for pages in (5, 10, 20):
            yield {"spider_args": {"pages": str(pages)}}
