"""The entries of the catalogue for the spiders of a package."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import DOCUMENT_MAX, CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import CRAWLER_NAME

from .version import PackageVersion, Spider

_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]")


def entries_of(version: PackageVersion, owners: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Return the documents of the entries.

    ``owners`` maps each entry of the database to its package. An entry has the name of its spider
    in lower case, with ``_`` for other characters. If another crawler has this name, the name of
    the package is in front of it, also after the other crawler was deleted, because schedules may
    name the entry.
    """
    package = version.package
    documents: dict[str, dict[str, Any]] = {}
    # A spider whose name needs no change keeps it.
    for spider in sorted(
        version.spiders or (), key=lambda spider: _name_of(spider["name"]) != spider["name"]
    ):
        name = _name_of(spider["name"])
        qualified = f"{package}.{name}"
        if (
            owners.get(name, package) != package
            or owners.get(qualified) == package
            or name in documents
        ):
            name = qualified
        documents[name] = _entry(name, package, spider)
    return [*documents.values()]


def possible_names(version: PackageVersion) -> set[str]:
    """Return all names that entries of this version can have."""
    names = {_name_of(spider["name"]) for spider in version.spiders or ()}
    return names | {f"{version.package}.{name}" for name in names}


def is_usable(document: Mapping[str, Any]) -> bool:
    """Return whether such a document can be an entry of the catalogue."""
    if not CRAWLER_NAME.fullmatch(document["name"]) or len(json.dumps(document)) > DOCUMENT_MAX:
        return False
    args = {name: Argument(**rule) for name, rule in document.get("args", {}).items()}
    try:
        CrawlerDefinition(document["name"], package=document["package"], args=args)
    except InvalidRequest:
        return False
    return True


def _name_of(spider: str) -> str:
    return _NOT_IN_NAMES.sub("_", spider.lower()).strip("._-")


def _entry(name: str, package: str, spider: Spider) -> dict[str, Any]:
    args = {
        arg: {key: value for key, value in rule.items() if value is not None}
        for arg, rule in spider["args"].items()
    }
    entry = {"name": name, "kind": "scrapy", "package": package, "spider": spider["name"]}
    return {**entry, "args": args} if args else entry
