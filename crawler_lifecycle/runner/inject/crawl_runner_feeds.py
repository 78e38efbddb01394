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
