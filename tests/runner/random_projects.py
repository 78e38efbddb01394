"""Random Scrapy projects: their feed, the place of its settings, and what Scrapy writes into it.

Scrapy's own exporters write the feeds in this process, after the settings are merged like
``crawl_runner_boot.py`` and ``crawl_runner_feeds.py`` merge them.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import dataclasses
import json
import os
import random
import shutil
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import Crawler
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import FeedExporter
from scrapy.statscollectors import MemoryStatsCollector

import crawler_lifecycle.runner
from crawler_lifecycle.runner.feeds import Feeds
from tests.runner.random_feeds import WORDS
from tests.runner.surfaces import Surfaces

sys.path.append(str(Path(crawler_lifecycle.runner.__file__).parent / "inject"))

import crawl_runner_boot
import crawl_runner_feeds

#: The places for settings, the one with the lowest priority first.
PLACES = ("addon", "settings.py", "custom_settings", "-s", "-o")
_MODULE = "a_random_project"
_GZIP = "scrapy.extensions.postprocessing.GzipPlugin"
_SUFFIXES = {
    "jsonlines": ("jl", "jsonl", "jsonlines"),
    "json": ("json",),
    "csv": ("csv", "CSV"),
    "xml": ("xml",),
}
_STEMS = (
    "items",
    "products",
    "out/%(name)s",
    "%(name)s/%(time)s",
    "a b/c,d",
    "été",
    "[1]",
    "x.y",
    "ITEMS",
    "pages/p",
    "a|b",
    "skipped",
    "t/2026/11/28/2101/council",
)
_FIELDS = ("name", "text", "price", "tags")


class Semicolons(CsvItemExporter):
    """As in projects from countries with a decimal comma."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "delimiter": ";"})


class Lines(JsonLinesItemExporter):
    """Derived without changes."""


class _Product(scrapy.Item):
    name, text, price, tags, n = (scrapy.Field() for _ in range(5))


_AsDataclass = dataclasses.make_dataclass("_AsDataclass", ["name", "text", "price", "tags"])


@dataclass
class Project:
    """Settings in their places, and the items that the only spider finds."""

    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: list[dict[str, Any]] = field(default_factory=list)
    """The items of the spider."""
    made: type = dict
    written: list[dict[str, Any]] = field(default_factory=list)
    """These items as their format holds them, as often as they are written."""


def project(seed: int) -> Project:
    """Return the project with this number."""
    rng = random.Random(seed)
    made = Project()
    place = rng.choice((None, *PLACES))
    kind, name, options = _feed(rng, "items" if place is None else rng.choice(_STEMS))
    texts = kind in ("csv", "xml")
    made.found = [_item(rng, texts=texts) for _ in range(rng.choice((0, 1, 2, 7, 40)))]
    made.made = rng.choice((dict, _Product, _AsDataclass if texts else dict))
    if place is None:
        made.places = {one: {} for one in PLACES}
        made.written = made.found
        return made
    made.written = [_as_written(kind, item, options) for item in made.found]
    weaker = PLACES[: PLACES.index(place)]
    for one in weaker:
        if rng.random() < 0.3:
            made.places[one] = {"FEEDS": {f"of-{one}": {"format": "csv"}}}
    if kind == "csv" and rng.random() < 0.15:
        # An exporter of the project, with its own name.
        made.places[place] = {
            "FEED_EXPORTERS": {"semicolons": f"{__name__}.Semicolons"},
            "FEEDS": {_key(rng, name, place): {**options, "format": "semicolons"}},
        }
    elif rng.random() < 0.15 and not made.places and "batch_item_count" not in options:
        made.places[place] = {"FEED_URI": _key(rng, name, place), "FEED_FORMAT": kind}
        made.written = [_as_written(kind, item, {}) for item in made.found]
    else:
        feeds: Any = {_key(rng, name, place): {"format": kind, **options}}
        made.places[place] = {
            "FEEDS": json.dumps(feeds) if place == "-s" and rng.random() < 0.5 else feeds
        }
    return made


def _feed(rng: random.Random, stem: str) -> tuple[str, str, dict[str, Any]]:
    """Return format, name and options of a feed."""
    kind = rng.choice(tuple(_SUFFIXES))
    name = stem if rng.random() < 0.2 else f"{stem}.{rng.choice(_SUFFIXES[kind])}"
    options: dict[str, Any] = {}
    some = rng.random
    if some() < 0.4:
        options["encoding"] = rng.choice(("utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"))
    if some() < 0.3:
        options["indent"] = rng.choice((None, 0, 2))
    if some() < 0.3:
        options["postprocessing"] = [_GZIP]
        name += rng.choice(("", ".gz"))
    if kind == "json" and options.get("encoding", "").startswith("utf-16"):
        options["encoding"] = "utf-8"  # Scrapy begins such a list in ASCII
    if some() < 0.2:
        options["fields"] = rng.choice((["text", "name"], {"name": "title", "text": "text"}))
    if some() < 0.2:
        options["overwrite"] = rng.choice((True, False))
    if some() < 0.2:
        name = f"%(batch_id)03d-{name}" if "/" not in name else name.replace("/", "/%(batch_id)d-")
        options["batch_item_count"] = 3
    if kind == "csv" and some() < 0.7:
        options["item_export_kwargs"] = {
            "delimiter": rng.choice(",;\t|^~:"),
            "quoting": rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
            "lineterminator": rng.choice(("\n", "\r\n")),
        }
    return kind, name, options


def _key(rng: random.Random, name: str, place: str) -> Any:
    """Return a relative name, like those in projects."""
    as_path = place not in ("-s", "-o") and rng.random() < 0.3
    return Path(name) if as_path else rng.choice(("", "./")) + name


def _item(rng: random.Random, *, texts: bool) -> dict[str, Any]:
    item: dict[str, Any] = {name: rng.choice(WORDS) for name in _FIELDS[:3]}
    item["tags"] = [rng.choice(("tea", "Grün", "x y")) for _ in range(rng.randrange(3))]
    if not texts:
        item["n"] = rng.choice((0, -1, 10**20, 1.5, None, True, {"k": [1, {"z": "\u20ac"}]}))
    return item


def _as_written(kind: str, item: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return an item as readers of this format get it."""
    fields = options.get("fields") or list(item)
    names = fields if isinstance(fields, dict) else {name: name for name in fields}
    found = {shown: item[name] for name, shown in names.items()}
    if kind == "csv":
        texts = {
            name: ",".join(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return {name: text for name, text in texts.items() if text}
    if kind == "xml":
        return {name: value or "" for name, value in found.items()}
    return found


@contextlib.contextmanager
def _around(files: Path, given: dict[str, Any], project: Path) -> Iterator[None]:
    """Act as the crawler's process: its environment, its folder, and nothing from the previous
    crawler.
    """
    before, home = dict(os.environ), os.getcwd()
    os.environ |= {
        "CRAWL_FILES_DIR": str(files),
        "CRAWL_SETTINGS": json.dumps(given),
        "SCRAPY_SETTINGS_MODULE": _MODULE,
    }
    os.chdir(project)
    crawl_runner_feeds.KeptFeed._known.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(home)
        os.environ.clear()
        os.environ.update(before)
        sys.modules.pop(_MODULE)


def crawl(made: Project, files: Path, folder: Path) -> None:
    """Let Scrapy export the project's items into the folder for its files.

    ``folder`` is the working folder.
    """
    places = made.places
    module: Any = types.ModuleType(_MODULE)
    sys.modules[_MODULE] = module
    vars(module).update(places.get("settings.py", {}))

    class AddOn:
        def update_settings(self, settings: Any) -> None:
            settings.setdict(places.get("addon", {}), priority="addon")

    class Spider(scrapy.Spider):
        name = "quotes"
        custom_settings = places.get("custom_settings", {})

    module.ADDONS = {AddOn: 1}
    with _around(files, {**places.get("-s", {}), **places.get("-o", {})}, folder):
        settings = crawl_runner_boot._settings()
        crawler = Crawler(Spider, settings)
        crawler.settings.update(settings)  # as ``CrawlerProcess.crawl`` does
        crawler.addons.load_settings(crawler.settings)
        crawler.stats = MemoryStatsCollector(crawler)
        crawl_runner_feeds.KeptFiles.from_crawler(crawler)
        exporter = FeedExporter.from_crawler(crawler)
        spider = Spider()

        async def export() -> None:
            exporter.open_spider(spider)
            for item in made.found:
                exporter.item_scraped(made.made(**item), spider)
            await exporter.close_spider(spider)

        asyncio.run(export())


_SPIDER = """
import json
import scrapy
{imports}

class Quotes(scrapy.Spider):
    name = "quotes"
    custom_settings = {custom}
    start_urls = ["data:,"]

    def __init__(self, port):
        super().__init__()

    def parse(self, response):
        for item in json.loads({items!r}):
            yield {made}
"""
_ADDON = """
class AddOn:
    def update_settings(self, settings):
        settings.setdict({settings}, priority="addon")
"""
_KINDS = {
    dict: ("", "item"),
    _Product: ("Product = scrapy.Item.__class__('Product', (scrapy.Item,), dict.fromkeys({fields}, scrapy.Field()))",
               "Product(item)"),
    _AsDataclass: ("import dataclasses\nProduct = dataclasses.make_dataclass('Product', {fields})", "Product(**item)"),
}  # fmt: skip


def modules(made: Project) -> dict[str, str]:
    """Return the project as modules of the package ``demo``: settings, spiders, and an add-on."""
    imports, expression = _KINDS[made.made]
    names = list(made.found[0]) if made.found else []
    path = "from pathlib import PosixPath\n"
    custom, items = made.places.get("custom_settings", {}), json.dumps(made.found)
    spider = _SPIDER.format(
        imports=imports.format(fields=names), custom=custom, items=items, made=expression
    )
    settings = "".join(
        f"{name} = {value!r}\n" for name, value in made.places.get("settings.py", {}).items()
    )
    return {
        "spider": path + spider,
        "settings": f"{path}ADDONS = {{'demo.addon.AddOn': 1}}\n{settings}",
        "addon": path + _ADDON.format(settings=made.places.get("addon", {})),
    }


def difference(made: Project, surfaces: Surfaces, folder: Path, asked: Any = None) -> str | None:
    """Return how the feed of a project, as it is stored, counted and reported, differs from what
    its spider found.

    ``folder`` is empty, and the project is started there. For ``asked``, see
    ``Surfaces.difference``.
    """
    files = surfaces.empty()
    crawl(made, files, folder)
    if any(folder.iterdir()):
        shutil.rmtree(folder)
        folder.mkdir()
        return "its feed is not kept"
    found = Feeds(str(files))
    while found.read_on():
        continue
    found.finish()
    if (found.items or 0) != len(made.written):
        return f"counted {found.items}, and {len(made.written)} were written; {found.skipped()}"
    return surfaces.difference(made.written, asked)
