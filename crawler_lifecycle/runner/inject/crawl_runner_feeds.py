"""Scrapy feed storage for files: relative paths are below ``CRAWL_FILES_DIR``, the folder for the crawl's files.

Scrapy imports it inside the user's process and uses it instead of its own storage for files.
"""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any, ClassVar

from scrapy.extensions.feedexport import FileFeedStorage

#: The end of a name that tells readers of items the format (``item_files.py``).
_TELLS = re.compile(r"\.(jsonl|jsonlines|jl|json|csv|xml)(\.gz)?$")


class KeptFeed(FileFeedStorage):
    """Scrapy's storage for files with another folder for relative paths. An absolute path is not changed."""

    _known: ClassVar[list[dict[str, Any]]] = []
    """Path and format of each feed, for ``item_files.py``, if the name of one does not tell its format."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        self.path = os.path.join(os.environ.get("CRAWL_FILES_DIR") or "", self.path)
        feed_options = options.get("feed_options") or {}
        self._given = feed_options.get("crawl_default", False)
        self._before = _version(self.path)
        folder = os.environ.get("CRAWL_FILES_DIR")
        if folder and not os.environ.get("CRAWL_ITEMS"):
            path = os.path.relpath(self.path, folder)
            self._known.append({"files": glob.escape(path), "format": feed_options.get("format")})
            if not all(_TELLS.search(one["files"]) for one in self._known):
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, ".crawl_items.jsonl"), "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(one) + "\n" for one in self._known)

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
