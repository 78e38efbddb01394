"""Scrapy feed storage for files: relative paths are below ``CRAWL_FILES_DIR``, the folder for the crawl's files.

Scrapy imports it inside the user's process and uses it instead of its own storage for files.
"""

from __future__ import annotations

import os
from typing import Any

from scrapy.extensions.feedexport import FileFeedStorage


class KeptFeed(FileFeedStorage):
    """Scrapy's storage for files with another folder for relative paths. An absolute path is not changed."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        self.path = os.path.join(os.environ.get("CRAWL_FILES_DIR") or "", self.path)
        self._given = (options.get("feed_options") or {}).get("crawl_default", False)
        self._before = _version(self.path)

    def open(self, spider: Any) -> Any:
        """Open the file; for our default feed, open the null device if the project already wrote this file itself."""
        if self._given and _version(self.path) != self._before:
            return open(os.devnull, "wb")
        return super().open(spider)


def _version(path: str) -> Any:
    """Return a value that changes with each write to the file; ``None`` without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
