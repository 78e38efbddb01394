"""Packages and their versions in the store, and what pruning removes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import DuplicateRequest, NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.features.catalogue.store.entries import sync_package
from crawler_lifecycle.features.packages.domain import version
from crawler_lifecycle.features.packages.domain.canary import CanarySettings, CanaryState
from crawler_lifecycle.features.packages.store import packages, rows
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from tests.contracts.store.harness import Harness


def digest(n: int) -> str:
    return f"sha256:{n:064x}"


def add(harness: Harness, n: int, package: str = "shop", **more: str) -> bool:
    new = NewVersion(package, f"v{n}", digest(n), 10, 1, by="ann", **more)
    return harness.store.packages.add_version(new).fresh


def names(harness: Harness, package: str = "shop") -> list[str]:
    return [one.version for one in harness.store.packages.versions(package)]


def test_the_newest_version_is_current_until_another_is_chosen(harness: Harness) -> None:
    store = harness.store.packages
    assert [add(harness, n) for n in (1, 2, 2)] == [True, True, False]
    spiders = [{"name": "quotes", "args": {"page": {"default": "1"}}}]
    new = NewVersion("shop", "v3", digest(3), 10, 1, "abc", spiders=spiders, note="broken")
    found = store.add_version(new).version
    assert (found.spiders, found.note, found.commit, found.current) == (
        spiders,
        "broken",
        "abc",
        True,
    )
    assert [one.spiders for one in store.versions("shop")] == [None] * 3
    change = store.use_version("shop", "v1", "bob")
    assert (change.version.version, change.version.current, change.fresh) == ("v1", True, True)
    assert not store.use_version("shop", "v1", "bob").fresh
    [listed] = store.list_packages(0, 10)
    assert (listed.version, listed.digest) == ("v1", digest(1))
    with pytest.raises(NotInThisState, match="no version 'v9'"):
        store.use_version("shop", "v9", None)
    with pytest.raises(DuplicateRequest, match="has other contents"):
        store.add_version(NewVersion("shop", "v1", digest(9), 10, 1))
    with pytest.raises(NotInThisState, match="make another one current first"):
        store.delete_version("shop", "v1")
    assert store.delete_version("shop", "v2")
    assert store.delete_version("shop", "v2") is None
    assert (store.delete_package("shop"), store.delete_package("shop")) == (2, 0)
    add(harness, 1)
    assert store.delete_version("shop", "v1")
    assert store.list_packages(0, 10) == []


def test_a_package_belongs_to_the_project_that_deployed_it_first(harness: Harness) -> None:
    store = harness.store.packages
    with limited("a"):
        add(harness, 1)
    with limited("b"):
        assert (store.find_version("shop"), store.versions("shop")) == (None, [])
        assert store.list_packages(0, 10) == []
        assert (store.delete_version("shop", "v1"), store.delete_package("shop")) == (None, 0)
        with pytest.raises(DuplicateRequest, match="is already taken; choose another one"):
            add(harness, 2)
        with pytest.raises(NotInThisState):
            store.use_version("shop", "v1", None)
    found = store.find_version("shop")
    assert found is not None
    assert found.project == "a"


def test_a_package_has_a_maximum_number_of_versions(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "VERSIONS_MAX", 2)
    assert version.VERSIONS_MAX > 2
    add(harness, 1)
    add(harness, 2)
    with pytest.raises(NotInThisState, match="delete old ones first"):
        add(harness, 3)


def entries(harness: Harness) -> set[str]:
    return {mark.name for mark in harness.store.entries.entry_marks()}


def test_the_entries_are_the_spiders_of_the_current_version(harness: Harness) -> None:
    store = harness.store

    def deploy(version: str, *spiders: str, canary: CanarySettings | None = None) -> Sequence[str]:
        found: list[dict[str, Any]] = [{"name": spider, "args": {}} for spider in spiders]
        new = NewVersion("shop", version, digest(ord(version)), spiders=found, canary=canary)
        return store.packages.add_version(new).without_entry

    with limited("other"):
        store.entries.set_entry("toys", {"name": "toys"}, None)
    assert deploy("a", "books", "toys", "!") == ["!"]
    assert entries(harness) == {"books", "toys", "shop.toys"}, "toys belongs to another project"
    deploy("b", "games", canary=CanarySettings(0.1))
    assert "games" not in entries(harness)
    [tried] = store.canaries.list_canaries()
    store.canaries.end_canary(tried.canary_id, CanaryState.ACCEPTED, "ann", "fine")
    assert entries(harness) == {"toys", "games"}
    store.packages.use_version("shop", "a", "ann")
    store.packages.delete_version("shop", "b")
    assert entries(harness) == {"toys", "books", "shop.toys"}
    store.packages.delete_version("shop", "a")
    assert entries(harness) == {"toys"}


def test_a_package_and_its_entries_change_together_or_not_at_all(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.store
    tenth = CanarySettings(0.1)
    for n, canary in ((1, None), (2, tenth)):
        spiders = [{"name": f"s{n}", "args": {}}]
        new = NewVersion("shop", f"v{n}", digest(n), spiders=spiders, canary=canary)
        store.packages.add_version(new)
    store.packages.add_version(NewVersion("one", "v1", digest(3), spiders=spiders))
    [tried] = store.canaries.list_canaries()
    commands: dict[str, Callable[[], object]] = {
        "deploy": lambda: store.packages.add_version(NewVersion("shop", "v9", digest(9))),
        "use": lambda: store.packages.use_version("shop", "v2", "ann"),
        "accept": lambda: store.canaries.end_canary(
            tried.canary_id, CanaryState.ACCEPTED, "ann", "fine"
        ),
        "delete the last version": lambda: store.packages.delete_version("one", "v1"),
        "delete": lambda: store.packages.delete_package("shop"),
    }

    def state() -> object:
        versions = [store.packages.versions(name) for name in ("shop", "one")]
        events = len(store.events.events_after(0, 5000))
        return versions, store.canaries.list_canaries(), store.entries.list_entries(), events

    def crash(*given: Any) -> Any:
        sync_package(*given)
        raise StoreUnavailable("the connection is lost")

    before = state()
    monkeypatch.setattr(rows, "sync_package", crash)
    for command in commands.values():
        with pytest.raises(StoreUnavailable):
            command()
        assert state() == before
    monkeypatch.undo()
    for command in commands.values():
        command()
    assert entries(harness) == set()


def test_pruning_keeps_what_an_open_run_or_a_schedule_needs(harness: Harness) -> None:
    store = harness.store.package_pruning
    for n in range(1, 8):
        add(harness, n)
        harness.clock.forward(1)
    harness.store.packages.use_version("shop", "v1", None)
    fence = harness.executing("r", code=digest(2), version="v2")
    spec = ScheduleSpec(run={"crawler": "plain", "version": "v3"}, every_s=60)
    harness.store.schedules.put("nightly", spec.document(), None)
    assert store.needed([digest(2), digest(7), digest(8)]) == {digest(2), digest(7)}
    assert store.prune(2) == [("shop", "v5"), ("shop", "v4")]
    assert names(harness) == ["v7", "v6", "v3", "v2", "v1"]
    assert store.prune(2) == []
    harness.store.packages.delete_version("shop", "v2")
    assert store.needed([digest(2)]) == {digest(2)}, "its open run keeps the code"
    harness.finish(fence)
    assert store.needed([digest(2)]) == set()
    assert store.prune(100) == []
