"""Feeds and downloads of Scrapy: relative paths are below ``CRAWL_FILES_DIR``, the folder for the crawl's files.

Scrapy imports it inside the user's process.
"""

from __future__ import annotations

import glob
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FileFeedStorage

#: The end of a name that tells readers of items the format (``item_files.py``).
_TELLS = re.compile(r"\.(jsonl|jsonlines|jl|json|csv|xml)(\.gz)?$")


class KeptFiles:
    """The settings of files, changed by an extension: Scrapy makes it after add-ons and all others set them.

    Earlier changes would be lost: ``CrawlerProcess.crawl`` merges the process's settings into those of the crawler.
    """

    @classmethod
    def from_crawler(cls, crawler: Any) -> KeptFiles:
        folder = os.environ.get("CRAWL_FILES_DIR")
        if not folder:
            raise NotConfigured
        _keep_feeds(crawler.settings, folder)
        for name in ("FILES_STORE", "IMAGES_STORE"):
            store = crawler.settings.get(name)
            if store and "://" not in str(store):
                crawler.settings.set(name, os.path.join(folder, store), priority="cmdline")
        return cls()


def _keep_feeds(settings: Any, folder: str) -> None:
    """Put feeds with relative paths into the folder; absolute paths stay.

    For most feeds our storage changes the path, because only the storage knows it with its placeholders filled in. A
    ``Path`` key is changed here, because Scrapy makes it absolute earlier.
    """
    base = dict(settings.getdict("FEED_STORAGES_BASE"))
    for scheme in ("", "file"):
        if base.get(scheme) == "scrapy.extensions.feedexport.FileFeedStorage":
            base[scheme] = "crawl_runner_feeds.KeptFeed"
    settings.set("FEED_STORAGES_BASE", base, priority="cmdline")
    if os.environ.get("CRAWL_ITEMS") != "off" and not settings.getpriority("FEEDS") and not settings.get("FEED_URI"):
        # It appends to an existing file, and without items it leaves no file.
        ours = {"format": "jsonlines", "overwrite": False, "store_empty": False, "batch_item_count": 0}
        ours["crawl_default"] = True
        settings.set("FEEDS", {"items.jsonl": ours}, priority="cmdline")
    feeds = settings.getdict("FEEDS")
    if any(isinstance(key, Path) for key in feeds):
        kept = {os.path.join(folder, key) if isinstance(key, Path) else key: value for key, value in feeds.items()}
        settings.set("FEEDS", kept, priority="cmdline")


class KeptFeed(FileFeedStorage):
    """Scrapy's storage for files with another folder for relative paths. An absolute path is not changed."""

    _known: ClassVar[list[dict[str, Any]]] = []
    """Path and format of each feed, for ``item_files.py``, if the name of one does not tell its format."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        folder = os.environ.get("CRAWL_FILES_DIR") or ""
        self.path = os.path.join(folder, self.path)
        feed_options = options.get("feed_options") or {}
        self._given = feed_options.get("crawl_default", False)
        self._before = _version(self.path)
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
