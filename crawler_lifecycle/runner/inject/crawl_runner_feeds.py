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
        self._given = (options.get("feed_options") or {}).get("crawl_default", False)
        self._before = _stand(self.path)

    def open(self, spider: Any) -> Any:
        """Write nothing beside a project that writes the same file itself, which it did before an item comes here."""
        if self._given and _stand(self.path) != self._before:
            return open(os.devnull, "wb")
        return super().open(spider)


def _stand(path: str) -> Any:
    """A value that is another one after somebody wrote to the file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
