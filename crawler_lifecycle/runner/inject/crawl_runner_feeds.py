"""Scrapy's feeds and downloads: relative paths are below ``CRAWL_FILES_DIR``, the folder for the
crawl's files.

Scrapy imports this module in the user's process.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, ClassVar

from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder

#: Matches a file name that shows the file's format to readers of items, in a folder that these
#: readers do not skip (``item_files.py``).
_TELLS = re.compile(
    r"(?!(.*/)?(pages/|skipped\.jsonl$)|(.*/){3}).*\.(jsonl|jsonlines|jl|json|csv|xml)(\.gz)?$"
)
#: Characters that are replaced in the names of archived files.
_NOT_KEPT = re.compile(r'[\\:*?"<>|]')


class KeptFiles:
    """An extension that changes the settings for files. Scrapy creates this extension when add-ons
    and all other sources have set their settings.

    Earlier changes would be lost: ``CrawlerProcess.crawl`` merges the process's settings into those
    of the crawler.
    """

    @classmethod
    def from_crawler(cls, crawler: Any) -> KeptFiles:
        folder = os.environ.get("CRAWL_FILES_DIR")
        if not folder:
            raise NotConfigured
        _keep_feeds(crawler.settings)
        for name in ("FILES_STORE", "IMAGES_STORE"):
            store = crawler.settings.get(name)
            if store and "://" not in str(store):
                crawler.settings.set(name, os.path.join(folder, store), priority="cmdline")
        return cls()


def _keep_feeds(settings: Any) -> None:
    """Put feeds with relative paths into the folder for files; absolute paths stay.

    Our storage changes the path, because only the storage gets the path with its placeholders
    filled in. A ``Path`` is converted to a string here, because otherwise Scrapy would make it
    absolute before our storage gets it.
    """
    base = dict(settings.getdict("FEED_STORAGES_BASE"))
    for scheme in ("", "file"):
        if base.get(scheme) == "scrapy.extensions.feedexport.FileFeedStorage":
            base[scheme] = "crawl_runner_feeds.KeptFeed"
    settings.set("FEED_STORAGES_BASE", base, priority="cmdline")
    feeds = {str(key): value for key, value in settings.getdict("FEEDS").items()}
    if settings["FEED_URI"]:
        settings.set("FEED_URI", str(settings["FEED_URI"]), priority="cmdline")
    elif os.environ.get("CRAWL_ITEMS") != "off" and not settings.getpriority("FEEDS"):
        # This feed appends to an existing file, and leaves no file if there are no items.
        feeds["items.jsonl"] = {
            "format": "jsonlines",
            "overwrite": False,
            "store_empty": False,
            "batch_item_count": 0,
            "crawl_default": True,
            "item_export_kwargs": {"default": _as_text},
        }
    settings.set("FEEDS", feeds, priority="cmdline")
    known = {
        load_object(path): name for name, path in settings.getdict("FEED_EXPORTERS_BASE").items()
    }
    for name, path in settings.getdict("FEED_EXPORTERS").items():
        if path:
            KeptFeed.formats[name] = next(
                (known[base] for base in load_object(path).__mro__ if base in known), name
            )


def _as_text(value: Any) -> Any:
    """Return a value that JSON cannot represent, such as the bytes of a page, as a string of at
    most 1,000 characters.
    """
    try:
        return ScrapyJSONEncoder().default(value)
    except TypeError:
        return str(value)[:1000]


class KeptFeed(FileFeedStorage):
    """Scrapy's storage for files, but with a different base folder for relative paths.

    An absolute path is not changed.
    """

    formats: ClassVar[dict[str, str]] = {}
    """The project's own formats -> the Scrapy formats from whose exporters the project's exporters
    are derived.
    """
    _known: ClassVar[list[dict[str, Any]]] = []
    """Path and format of each feed, for ``item_files.py``, if the name of any feed does not show
    its format.
    """

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        folder = os.environ.get("CRAWL_FILES_DIR") or ""
        self.path = os.path.join(folder, self.path)
        feed_options = options.get("feed_options") or {}
        self._given = feed_options.get("crawl_default", False)
        self._before = _version(self.path)
        said = os.environ.get("CRAWL_ITEMS") or "{}"
        entry = json.loads(said) if said.startswith("{") else {"files": ""}
        if folder and "files" not in entry:
            path = os.path.relpath(self.path, folder)
            pattern = _NOT_KEPT.sub("*", path.replace("[", "[[]"))
            format = feed_options.get("format", "")
            self._known.append(
                {"files": pattern, "format": self.formats.get(format, format), **entry}
            )
            if not all(_TELLS.match(known["files"]) for known in self._known):
                os.makedirs(folder, exist_ok=True)
                with open(
                    os.path.join(folder, ".crawl_items.jsonl"), "w", encoding="utf-8"
                ) as file:
                    file.writelines(json.dumps(known) + "\n" for known in self._known)

    def open(self, spider: Any) -> Any:
        """Open the file; for our default feed, open the null device if the project already wrote
        this file itself.
        """
        if self._given and _version(self.path) != self._before:
            return open(os.devnull, "wb")
        return super().open(spider)


def _version(path: str) -> Any:
    """Return a value that changes with each write to the file; ``None`` if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
