"""The entries of the catalogue in the database, and their versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    NotInThisState,
    RunNotFound,
    TooManyOpen,
)
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.features.catalogue.store import entries as store_entries
from crawler_lifecycle.features.catalogue.store.entries import EntryChange, sync_package
from tests.contracts.store.harness import Harness

OLD = {"name": "shop", "image": "shop:1"}
NEW = {"name": "shop", "image": "shop:2"}


def sync(harness: Harness, package: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Make these the entries of a package, as a deploy does."""
    change = EntryChange("default", harness.clock.now, "ci")
    with harness.store.database.writing() as conn:
        return sync_package(conn, package, documents, change)


def test_a_change_adds_a_version_and_the_same_document_none(harness: Harness) -> None:
    entries = harness.store.entries
    assert entries.get_entry("shop") is None
    first, changed = entries.set_entry("shop", OLD, "ann")
    assert (first.number, first.document, first.project, changed) == (1, OLD, "default", True)
    assert entries.set_entry("shop", dict(OLD), "bob") == (first, False)
    second, _ = entries.set_entry("shop", NEW, "bob", "a new parser")
    assert second == entries.get_entry("shop")
    assert (second.number, second.document, second.changed_by) == (2, NEW, "bob")
    history = entries.entry_history("shop")
    assert [(row.number, row.changed_by, row.note) for row in history] == [
        (2, "bob", "a new parser"),
        (1, "ann", None),
    ]
    assert entries.entry_history("shop", before=2, limit=5) == history[1:]
    assert entries.entry_version("shop", 1) == history[1]
    assert entries.entry_version("shop", 3) is None


def test_an_older_version_is_used_under_its_number(harness: Harness) -> None:
    entries = harness.store.entries
    with pytest.raises(RunNotFound, match="crawler 'shop' is not in the database"):
        entries.use_entry("shop", 1, None)
    entries.set_entry("shop", OLD, None)
    entries.set_entry("shop", NEW, None)
    used, changed = entries.use_entry("shop", 1, "ann")
    assert (used.number, used.document, used.changed_by, changed) == (1, OLD, "ann", True)
    assert entries.use_entry("shop", 1, "bob") == (used, False)
    with pytest.raises(NotInThisState, match="version: crawler 'shop' has no version 3"):
        entries.use_entry("shop", 3, None)
    assert entries.set_entry("shop", NEW, None)[0].number == 3, "a number has one document"


def test_versions_outlive_their_entry_and_numbers_are_not_used_again(harness: Harness) -> None:
    entries = harness.store.entries
    entries.set_entry("shop", OLD, None)
    deleted = entries.delete_entry("shop")
    assert deleted is not None
    assert deleted.document == OLD
    assert entries.delete_entry("shop") is None
    assert (entries.get_entry("shop"), entries.list_entries(), entries.entry_marks()) == (
        None,
        [],
        [],
    )
    assert entries.set_entry("shop", NEW, None)[0].number == 2
    old = entries.entry_version("shop", 1)
    assert old is not None
    assert old.document == OLD


def test_the_entries_of_a_package_are_exactly_these(harness: Harness) -> None:
    entries = harness.store.entries
    entries.set_entry("mine", {"name": "mine"}, "ann")
    entries.set_entry("theirs", {"name": "theirs"}, "bob", project="other")

    def deploy(*names: str, package: str = "shop", **more: str) -> list[str]:
        documents = [{"name": name, "package": package, **more} for name in names]
        return sync(harness, package, documents)

    assert deploy("a", "b", "mine", "theirs") == ["mine", "theirs"]
    before = {mark.name: (mark.number, mark.package) for mark in entries.entry_marks()}
    assert before == {"a": (1, "shop"), "b": (1, "shop"), "mine": (1, None), "theirs": (1, None)}
    assert deploy("a", "b") == []
    assert deploy("b", "c", package="else") == ["b"]
    assert deploy("b", spider="b2") == []
    after = {mark.name: (mark.number, mark.package) for mark in entries.entry_marks()}
    assert after == {"b": (2, "shop"), "c": (1, "else"), "mine": (1, None), "theirs": (1, None)}
    for change in (
        lambda: entries.set_entry("b", NEW, None),
        lambda: entries.use_entry("b", 1, None),
        lambda: entries.delete_entry("b"),
    ):
        with pytest.raises(NotInThisState, match="crawler 'b' comes from package 'shop'"):
            change()
    assert deploy() == []
    assert [mark.name for mark in entries.entry_marks()] == ["c", "mine", "theirs"]


def test_a_project_sees_and_changes_its_own_entries(harness: Harness) -> None:
    entries = harness.store.entries
    entries.set_entry("shop", OLD, None, project="one")
    with limited("two"):
        assert (entries.get_entry("shop"), entries.list_entries(), entries.entry_marks()) == (
            None,
            [],
            [],
        )
        assert (entries.entry_history("shop"), entries.entry_version("shop", 1)) == ([], None)
        assert entries.delete_entry("shop") is None
        with pytest.raises(RunNotFound):
            entries.use_entry("shop", 1, None)
        with pytest.raises(DuplicateRequest, match="crawler 'shop' is already taken; choose"):
            entries.set_entry("shop", NEW, None)
    with limited("one"):
        assert [entry.document for entry in entries.list_entries()] == [OLD]


def test_the_number_of_entries_is_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_entries, "ENTRIES_MAX", 2)
    entries = harness.store.entries
    assert sync(harness, "shop", [{"name": "a"}, {"name": "b"}]) == []
    with pytest.raises(TooManyOpen, match="at most 2 are allowed"):
        entries.set_entry("shop", OLD, None)
    assert sync(harness, "shop", [{"name": "b"}, {"name": "c"}]) == []
    with pytest.raises(TooManyOpen):
        sync(harness, "shop", [{"name": name} for name in "abc"])
