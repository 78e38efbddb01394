"""A crawler that follows the guide of Crawlee.

Its arguments come as JSON, and its items are written to a folder.

To run it by hand, use ``python main.py``.
"""

import asyncio
import json
import os
from pathlib import Path

from crawlee import ConcurrencySettings
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext

ARGS = json.loads(os.environ.get("CRAWL_ARGS", "{}"))
FOLDER = Path(os.environ.get("CRAWL_FILES_DIR", "."))


async def main() -> None:
    crawler = ParselCrawler(
        max_requests_per_crawl=int(ARGS.get("max_pages", 60)),
        concurrency_settings=ConcurrencySettings(max_concurrency=4, desired_concurrency=2),
    )

    @crawler.router.default_handler
    async def handle(context: ParselCrawlingContext) -> None:
        context.log.info(context.request.url)
        await asyncio.sleep(int(ARGS.get("delay_ms", 0)) / 1000)
        await context.push_data(
            {"url": context.request.url, "title": context.selector.css("title::text").get()}
        )
        await context.enqueue_links()

    await crawler.run([ARGS.get("site", "http://127.0.0.1:8400/")])
    await crawler.export_data(FOLDER / "items.json")


if __name__ == "__main__":
    asyncio.run(main())
