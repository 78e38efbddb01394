"""Scrapy feed storage for files: relative paths are below ``CRAWL_FILES_DIR``, where the crawl's files are kept.

Imported by Scrapy inside the user's process, in place of its own storage for files.
"""

from __future__ import annotations

import os
from typing import Any

from scrapy.extensions.feedexport import FileFeedStorage


class KeptFeed(FileFeedStorage):
    """As Scrapy's own; an absolute path is not changed."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        self.path = os.path.join(os.environ.get("CRAWL_FILES_DIR") or "", self.path)
        # Of the feed that a project without one gets: a file that was not there when it began is the project's own.
        given = (options.get("feed_options") or {}).get("crawl_default", False)
        self._yields = given and not os.path.exists(self.path)

    def open(self, spider: Any) -> Any:
        """Write nothing beside a project that writes the same file itself, which it did before an item comes here."""
        if self._yields and os.path.exists(self.path):
            return open(os.devnull, "wb")
        return super().open(spider)
