"""Packages and their versions in the store, and what pruning removes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from crawler_lifecycle.domain.errors import DuplicateRequest, NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings, CanaryState
from crawler_lifecycle.features.canaries.store.tables import canary
from crawler_lifecycle.features.catalogue.store.entries import sync_package
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.managers.domain.manager import Job, Page, SourceItem
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.features.packages.domain import version
from crawler_lifecycle.features.packages.store import packages, rows
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from tests.contracts.store.graphing import Graphed, manager
from tests.contracts.store.harness import OTHER, Harness
from tests.contracts.store.managing import NEW, Managed


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
    for n, settings in ((1, None), (2, tenth)):
        spiders = [{"name": f"s{n}", "args": {}}]
        new = NewVersion("shop", f"v{n}", digest(n), spiders=spiders, canary=settings)
        store.packages.add_version(new)
    store.packages.add_version(NewVersion("one", "v1", digest(3), spiders=spiders))
    [tried] = store.canaries.list_canaries()
    commands: dict[str, Callable[[], object]] = {
        "deploy": lambda: store.packages.add_version(NewVersion("shop", "v9", digest(9))),
        "use": lambda: store.packages.use_version("shop", "v2", "ann"),
        "accept": lambda: store.canaries.end_canary(
            tried.canary_id, CanaryState.ACCEPTED, "ann", "fine"
        ),
        "delete the current version": lambda: store.packages.delete_version(
            "shop", "v1", "ann", fall_back=True
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


def named_by_schedule(harness: Harness, version: str) -> None:
    spec = ScheduleSpec(run={"crawler": "plain", "version": version}, every_s=60)
    harness.store.schedules.put(f"run-{version}", spec.document(), None)


def named_by_schedule_of_managers(harness: Harness, version: str) -> None:
    target = {"plan": "shop:Stream", "options": {"argv": ["plain", f"--version={version}"]}}
    spec = ScheduleSpec(manager=target, every_s=60)
    harness.store.schedules.put(f"manager-{version}", spec.document(), None)


def named_by_schedule_of_graphs(harness: Harness, version: str) -> None:
    job = {"crawler": "plain", "version": version}
    target = {"name": "g", "steps": [{"path": "a", "kind": "crawl", "job": job}]}
    spec = ScheduleSpec(graph=target, every_s=60)
    harness.store.schedules.put(f"graph-{version}", spec.document(), None)


def named_by_manager(harness: Harness, version: str) -> None:
    options = {"argv": ["plain", "--version", version]}
    new = NewManager("m", version, "plans:Shops", options)
    harness.store.managers.reserve_manager(new)


def named_by_job(harness: Harness, version: str) -> None:
    managed = Managed.begun(harness, replace(NEW, flow_id=f"job-{version}"))
    found = Page([SourceItem(1, Job("plain", version=version))], 1)
    harness.store.managers.add_page(managed.fence, found)


def named_by_step(harness: Harness, version: str) -> None:
    job = {"crawler": "plain", "version": version}
    Graphed.made(harness, [StepSpec("a", StepKind.CRAWL, job)], f"crawl-{version}")


def named_by_step_of_managers(harness: Harness, version: str) -> None:
    options = {"argv": ["plain", "--version", version]}
    steps = [manager("a", options=options)]
    Graphed.made(harness, steps, f"manager-{version}")


def executed_by_run(harness: Harness, version: str) -> None:
    harness.executing(f"run-{version}", code=digest(int(version[1:])), version=version)


def deleted_schedule(harness: Harness, version: str) -> None:
    named_by_schedule(harness, version)
    harness.store.schedules.delete(f"run-{version}")


def ended_run(harness: Harness, version: str) -> None:
    fence = harness.executing(f"over-{version}", code=digest(int(version[1:])), version=version)
    harness.finish(fence)


def nothing(harness: Harness, version: str) -> None:
    pass


HOLDERS = [
    *(named_by_schedule, named_by_schedule_of_managers, named_by_schedule_of_graphs),
    *(named_by_manager, named_by_job, named_by_step, named_by_step_of_managers, executed_by_run),
]
OTHERS = [deleted_schedule, ended_run, nothing]


@pytest.mark.parametrize("seed", range(3))
def test_pruning_keeps_exactly_what_something_needs(harness: Harness, seed: int) -> None:
    chance = random.Random(seed)
    holders = [*HOLDERS, *OTHERS, *chance.choices([*HOLDERS, *OTHERS], k=6)]
    chance.shuffle(holders)
    for n in range(len(holders)):
        add(harness, n)
    versions = [f"v{n}" for n in range(len(holders))]
    current, tried = chance.sample(versions, 2)
    harness.store.packages.use_version("shop", current, None)
    new = NewVersion("shop", "newest", digest(99), canary=CanarySettings(0.1))
    harness.store.packages.add_version(new)
    with harness.store.database.writing() as conn:
        conn.execute(update(canary).values(new_version=tried))
    for name, holder in zip(versions, holders, strict=True):
        holder(harness, name)
    keep = chance.randrange(1, 5)
    wanted = {current, tried, *[*versions, "newest"][-keep:]}
    wanted |= {name for name, holder in zip(versions, holders, strict=True) if holder in HOLDERS}
    harness.store.package_pruning.prune(keep)
    assert set(names(harness)) == wanted
    assert harness.store.package_pruning.prune(keep) == []


@pytest.mark.parametrize("holder", [holder for holder in HOLDERS if holder is not executed_by_run])
def test_what_something_names_is_deleted_only_by_force(
    harness: Harness, holder: Callable[[Harness, str], None]
) -> None:
    store = harness.store.packages
    for n in (1, 2, 3):
        add(harness, n)
    add(harness, 1, "else")
    holder(harness, "v1")
    said = "version 'v1' of package 'shop' is named by (schedule|manager|graph) .*; change or end"
    with pytest.raises(NotInThisState, match=said):
        store.delete_version("shop", "v1")
    with pytest.raises(NotInThisState, match="a version of package 'shop' is named by"):
        store.delete_package("shop")
    assert names(harness) == ["v3", "v2", "v1"]
    harness.store.entries.set_entry("plain", {"name": "plain", "package": "else"}, None)
    assert store.delete_version("shop", "v1"), "it is the other package's version"
    with pytest.raises(NotInThisState, match="of package 'else' is named by"):
        store.delete_version("else", "v1")
    assert store.delete_version("else", "v1", force=True)
    assert store.delete_package("shop") == 2


def test_a_version_that_an_open_run_executes_is_deleted_and_its_code_stays(
    harness: Harness,
) -> None:
    store = harness.store
    for n in (1, 2):
        add(harness, n)
    fence = harness.executing("r", code=digest(1), version="v1")
    assert store.packages.delete_version("shop", "v1")
    known = [digest(1), digest(2), digest(3)]
    assert store.package_pruning.needed(known) == {digest(1), digest(2)}
    harness.finish(fence)
    assert store.package_pruning.needed(known) == {digest(2)}


@pytest.mark.parametrize("path", ["gateway", "workflow"])
@pytest.mark.parametrize("stored", [True, False], ids=["of the database", "of the file"])
def test_an_ended_run_whose_version_was_deleted_is_not_resumed(
    harness: Harness, path: str, stored: bool
) -> None:
    initiation = harness.store.initiation
    packages = harness.store.packages
    if stored:
        harness.store.entries.set_entry("books", {"name": "books", "package": "shop"}, None)
        harness.store.entries.delete_entry("books")
    for n in (1, 2):
        add(harness, n)
    fence = harness.executing("r", crawler="books", code=digest(1), version="v1")
    packages.delete_version("shop", "v1")
    harness.finish(fence)
    before = harness.row(fence)

    def resume(request: RunRequest) -> None:
        if path == "gateway":
            initiation.resume_run(request, "crawl/books/r", before.attempt)
        else:
            initiation.claim_run(request, OTHER, lambda _: False)

    again = RunRequest(run_id=fence.run_id, rerun=True)
    package = "package 'shop'" if stored else "the package of crawler 'books'"
    with pytest.raises(NotInThisState) as refused:
        resume(again)
    assert str(refused.value) == (
        f"run {fence.run_id} executes version 'v1' of {package}, which was deleted; deploy this "
        "version again, or resume the run with another one (crawlctl resume "
        f"{fence.run_id} --version newest)"
    )
    assert harness.row(fence) == before, "nothing changed"
    packages.add_version(NewVersion("shop", "v1-again", digest(1)))
    resume(again)
    assert harness.row(fence).attempt == 2


def test_an_ended_run_is_resumed_with_another_version_than_the_deleted_one(
    harness: Harness,
) -> None:
    for n in (1, 2):
        add(harness, n)
    fence = harness.executing("r", code=digest(1), version="v1")
    harness.finish(fence)
    harness.store.packages.delete_version("shop", "v1")
    other = RunRequest(run_id=fence.run_id, rerun=True, version="v2", code=digest(2))
    harness.store.initiation.resume_run(other, "crawl/r", 1)
    request = harness.store.runs.request_of(fence.run_id)
    assert (request.version, request.code) == ("v2", digest(2))


def test_the_newest_version_that_was_in_use_replaces_a_deleted_one(harness: Harness) -> None:
    store = harness.store.packages
    tenth = CanarySettings(0.1)
    for n, settings in ((1, None), (2, tenth), (3, None), (4, tenth)):
        store.add_version(NewVersion("shop", f"v{n}", digest(n), by="ann", canary=settings))

    def current() -> str | None:
        found = store.find_version("shop")
        return found and found.version

    assert current() == "v3"
    assert store.delete_version("shop", "v3", "ann", fall_back=True)
    assert (current(), names(harness)) == ("v1", ["v4", "v2", "v1"])
    [open_, *_] = harness.store.canaries.list_canaries()
    assert (open_.new_version, open_.state) == ("v4", "cancelled"), "it compared v4 with v3"
    assert store.delete_version("shop", "v2", "ann", fall_back=True)
    assert current() == "v1", "another version was deleted"
    assert store.delete_version("shop", "v1", "ann", fall_back=True)
    assert current() == "v4", "only this one is left"
    assert store.delete_version("shop", "v4", "ann", fall_back=True)
    assert store.list_packages(0, 10) == []


def test_a_person_goes_back_to_what_was_in_use_and_not_to_what_was_only_newer(
    harness: Harness,
) -> None:
    """Version 3 was bad, so version 2 was chosen again, and then version 4 was deployed."""
    store = harness.store.packages
    for n in (1, 2, 3):
        add(harness, n)
    assert store.package_version_before("shop") == "v2"
    store.delete_version("shop", "v3", "ann", fall_back=True)
    add(harness, 3)
    store.use_version("shop", "v2", "ann")
    add(harness, 4)
    assert store.package_version_before("shop") == "v2"
    assert store.delete_version("shop", "v4", "ann", fall_back=True)
    [current] = store.list_packages(0, 10)
    assert current.version == "v2"
    assert store.package_version_before("shop") == "v1", "a second time, people go further back"


def test_a_version_that_a_person_chose_after_its_rejection_was_in_use(harness: Harness) -> None:
    store = harness.store.packages
    add(harness, 1)
    store.add_version(NewVersion("shop", "v2", digest(2), by="ann", canary=CanarySettings(0.1)))
    [tried] = harness.store.canaries.list_canaries()
    harness.store.canaries.end_canary(tried.canary_id, CanaryState.REJECTED, "judge", "price: 0 %")
    store.use_version("shop", "v2", "ann")
    add(harness, 3)
    assert store.package_version_before("shop") == "v2"


def test_a_refused_deletion_of_the_current_version_changes_nothing(harness: Harness) -> None:
    store = harness.store.packages
    for n in (1, 2):
        add(harness, n)
    named_by_schedule(harness, "v2")
    before = store.versions("shop")
    with pytest.raises(NotInThisState, match="is named by schedule run-v2"):
        store.delete_version("shop", "v2", "ann", fall_back=True)
    assert store.versions("shop") == before
