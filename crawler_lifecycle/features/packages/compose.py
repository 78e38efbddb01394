"""The composition of this feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from crawler_lifecycle.adapters.catalogue import read_document
from crawler_lifecycle.compose import Parts
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.catalogue.store.entries import EntryStore

from .activities import PackageActivities
from .domain.entries import entries_of
from .ports import CodeStore, Inspector
from .store.packages import PackageStore


def activities(p: Parts) -> tuple[PackageActivities]:
    """Return the object with the activities of packages."""
    return (PackageActivities(cast(CodeStore, p.code), cast(Inspector, p.inspector)),)


def follow(packages: PackageStore, entries: EntryStore, name: str, by: str | None) -> str:
    """Make the spiders of a package's current version its entries. Return a sentence about those
    that have none.
    """
    current = packages.find_version(name)
    # If the spiders are unknown, the entries stay as they are.
    if current is None or current.note is not None:
        return ""
    owners = {mark.name: mark.package for mark in entries.entry_marks()}
    documents = entries_of(current, owners)
    readable = [document for document in documents if _is_readable(document)]
    taken = entries.sync_package(name, readable, current.project, by)
    names = [str(document["name"]) for document in documents if document not in readable]
    missing = [*taken, *names]
    if not missing:
        return ""
    return (
        " These spiders got no crawler, because another crawler has the name, or none can have it: "
        f"{', '.join(missing[:10])}; add an entry with package, spider and another name"
    )


def _is_readable(document: Mapping[str, Any]) -> bool:
    """Return whether this can be an entry of the catalogue."""
    try:
        read_document(document)
    except InvalidRequest:
        return False
    return True
