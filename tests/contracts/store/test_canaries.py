"""Canaries: a new version of a package gets a share of the runs until it is judged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, pinned
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import (
    InvalidRequest,
    NotInThisState,
    RunNotFound,
    TooManyOpen,
)
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.features.canaries.domain.canary import (
    CanaryRow,
    CanarySettings,
    CanaryState,
)
from crawler_lifecycle.features.canaries.store.tables import canary
from crawler_lifecycle.features.catalogue.store.entries import sync_package
from crawler_lifecycle.features.catalogue.store.tables import catalogue_entry
from crawler_lifecycle.features.packages.gateway.canaries import conditions
from crawler_lifecycle.features.packages.store import rows
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.packages.worker import CanaryKeeper
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import OWNER, Harness, bad_end, good_end, seen

TENTH = CanarySettings(0.1)
#: Enough for two canaries of a tenth, and for the third one that a rejected version does not get.
STARTS = 30
FULL = {"title": 1.0, "price": 0.98}


def deploy(
    store: Store, version: str, canary: CanarySettings | None = None, package: str = "shop"
) -> None:
    digest = f"sha256:{ord(version[-1]):064x}"
    spiders = [{"name": f"{package}-{version}", "args": {}}]
    new = NewVersion(package, version, digest, 100, 2, spiders=spiders, canary=canary)
    store.packages.add_version(new)


def begin(harness: Harness, name: str, **fields: Any) -> tuple[Fence, str]:
    """Start without naming a version. Return the run and its version."""
    store = harness.store
    versions = store.versions
    code = versions.find("shop", None)
    canary = versions.open_canary("shop")
    fence = harness.deployed(
        name, crawler="shop", version=code.version, code=code.digest, canary=canary, **fields
    )
    version = store.runs.request_of(fence.run_id).version
    assert version is not None
    return fence, version


def finish(
    harness: Harness, fence: Fence, price: float | None = 0.98, items: int = 100, seconds: int = 30
) -> None:
    """End the run; without a price, it fails."""
    harness.execute(fence)
    now = harness.clock.forward(seconds)
    coverage = Coverage(items, {**FULL, "price": price or 0.0})
    end = bad_end(now) if price is None else good_end(now)
    [task] = harness.store.polls.found_state(fence).tasks
    counters = Counters(pages=items, items=items)
    end_seen = seen(
        task, Phase.ENDED, now, uid=task.uid, counters=counters, fields=coverage, end=end
    )
    harness.poll(fence, [end_seen])
    harness.end(fence)


@pytest.fixture
def shop(harness: Harness) -> Harness:
    """A package with one version and five runs of it."""
    deploy(harness.store, "1")
    for n in range(5):
        fence, version = begin(harness, f"old-{n}")
        assert version == "1"
        finish(harness, fence)
    return harness


def current(store: Store) -> str:
    found = store.packages.find_version("shop")
    assert found is not None
    return found.version


def only(store: Store) -> CanaryRow:
    [row] = store.canaries.list_canaries(limit=1)
    return row


def events(store: Store) -> list[tuple[str, Any]]:
    found = store.events.events_after(0, 5000)
    return [(one.type, one.body["cause"]) for one in found if one.type.startswith("canary.")]


def test_a_broken_selector_reaches_a_tenth_of_the_runs_and_goes_back(shop: Harness) -> None:
    store = shop.store
    deploy(store, "2", TENTH)
    assert current(store) == "1"
    keeper = CanaryKeeper(store)
    used = []
    tried = []
    for n in range(STARTS):
        fence, version = begin(shop, f"run-{n}")
        used.append(version)
        if version == "2":
            tried.append(str(fence.run_id))
        if store.canaries.open_canary("shop") is not None:
            finish(shop, fence, price=0.0 if version == "2" else 0.98)
            keeper.once()
    assert used[0] == "2", "the first one at once"
    row = only(store)
    assert (used.count("2"), row.given, row.asked, row.state) == (2, 2, 11, "rejected")
    assert current(store) == "1"
    [(type, said)] = events(store)
    assert (type, said) == (
        "canary.rejected",
        "shop 2 was rolled back to 1: shop: price: 0 % of 100 items have it, the usual share is 98 % "
        f"(median of 10 runs), expected at least 69 % (runs {', '.join(tried)})",
    )
    [found] = conditions(store, shop.clock.now)
    assert (found.kind, found.subject, found.cause) == ("canary_rejected", "packages/shop", said)
    deploy(store, "3")
    assert list(conditions(store, shop.clock.now)) == []
    assert current(store) == "3"


def test_exactly_a_share_of_the_runs_gets_the_new_version(shop: Harness) -> None:
    deploy(shop.store, "2", replace(TENTH, runs=100))
    used = [begin(shop, f"run-{n}")[1] for n in range(STARTS)]
    assert [n for n, version in enumerate(used) if version == "2"] == list(range(0, STARTS, 10))
    CanaryKeeper(shop.store).once()
    row = only(shop.store)
    assert (row.state, row.given, current(shop.store)) == ("open", STARTS // 10, "1"), (
        "none has ended"
    )


def test_starts_at_once_are_counted_exactly_and_repeats_not_at_all(shop: Harness) -> None:
    deploy(shop.store, "2", CanarySettings(0.25))
    canary_id = only(shop.store).canary_id
    request = RunRequest(
        crawler="shop", version="1", code=f"sha256:{ord('1'):064x}", canary=canary_id
    )

    def start(n: int) -> str | None:
        run, _ = shop.store.initiation.reserve_run(request, f"run-{n % 20}")
        return shop.store.runs.request_of(run.run_id).version

    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(start, range(20)))
    row = only(shop.store)
    assert (first.count("2"), row.given, row.asked) == (5, 5, 20)
    created = [
        shop.store.initiation.create_run(replace(request, crawler="other"), "again", OWNER)
        for _ in range(2)
    ]
    assert created[0] == created[1]
    assert only(shop.store).asked == 21


def test_a_good_version_becomes_current_and_two_keepers_tell_it_once(shop: Harness) -> None:
    store = shop.store
    deploy(store, "2", CanarySettings(0.5))
    keepers = [CanaryKeeper(store), CanaryKeeper(store)]
    while current(store) == "1":
        fence, _ = begin(shop, f"run-{shop.clock.forward(1)}")
        finish(shop, fence)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(CanaryKeeper.once, keepers))
    [(type, cause)] = events(store)
    assert (type, cause) == ("canary.accepted", "shop 2 replaced 1: 0 of 3 runs were bad")
    assert only(store).asked == 5
    assert list(conditions(store, shop.clock.now)) == []


def test_runs_that_people_stop_do_not_count_and_failures_do(shop: Harness) -> None:
    store = shop.store
    deploy(store, "2", CanarySettings(0.5, runs=1))
    stopped, version = begin(shop, "stopped")
    assert version == "2"
    store.stops.record_stop(stopped.run_id, shop.stop(), "stop-1")
    finish(shop, stopped, price=None)
    assert shop.row(stopped).ended_by == EndedBy.PERSON
    keeper = CanaryKeeper(store)
    keeper.once()
    assert only(store).state == "open"
    begin(shop, "between")
    failed, version = begin(shop, "failed")
    assert version == "2"
    finish(shop, failed, price=None)
    keeper.once()
    row = only(store)
    assert (row.state, current(store)) == ("rejected", "1")
    assert row.result is not None
    assert row.result.startswith("shop 2 was rolled back to 1: shop: it failed: ")


def test_a_deploy_a_choice_or_a_deletion_cancels_it(shop: Harness) -> None:
    store = shop.store
    deploy(store, "2", TENTH)
    deploy(store, "3", TENTH)
    newest, before = store.canaries.list_canaries()
    assert (before.state, before.result) == ("cancelled", "version 3 was deployed")
    assert (newest.old_version, newest.new_version, newest.state) == ("1", "3", "open")
    store.packages.use_version("shop", "1", "ann")
    assert (only(store).state, only(store).ended_by) == ("cancelled", "ann")
    deploy(store, "4", TENTH)
    store.packages.delete_version("shop", "2")
    assert only(store).state == "open", "another version"
    store.packages.delete_version("shop", "4")
    assert only(store).state == "cancelled"
    assert begin(shop, "later")[1] == "1"
    assert events(store) == []


def test_a_canary_that_cannot_end_now_delays_no_other_one(
    shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shop.store
    deploy(store, "3", package="full")
    deploy(store, "2", CanarySettings(0.5, runs=1))
    finish(shop, begin(shop, "tried")[0])
    deploy(store, "2", CanarySettings(0.5, runs=1), package="full")
    with store.database.writing() as conn:  # the run has the code of both
        conn.execute(update(canary).values(after_run_id=0))

    def full(conn: Any, package: str, *more: Any) -> list[str]:
        if package == "full":
            raise TooManyOpen("the database has 5000 crawlers")
        return sync_package(conn, package, *more)

    keeper = CanaryKeeper(store)
    monkeypatch.setattr(rows, "sync_package", full)
    for _ in range(2):
        with pytest.raises(TooManyOpen):
            keeper.once()
        found = {row.package: row.state for row in store.canaries.list_canaries()}
        assert found == {"full": "open", "shop": "accepted"}
    monkeypatch.undo()
    keeper.once()
    assert {row.state for row in store.canaries.list_canaries()} == {CanaryState.ACCEPTED}


def test_people_end_it_and_a_second_end_changes_nothing(shop: Harness) -> None:
    store = shop.store
    deploy(store, "2", TENTH)
    canary_id = only(store).canary_id
    with limited("elsewhere"), pytest.raises(NotInThisState):
        store.canaries.end_canary(canary_id, CanaryState.ACCEPTED, "eve", "")
    accepted = store.canaries.end_canary(canary_id, CanaryState.ACCEPTED, "ann", "it is fine")
    again = store.canaries.end_canary(canary_id, CanaryState.REJECTED, "bob", "it is not")
    assert (accepted.state, accepted.ended_by) == ("accepted", "ann")
    assert (again, current(store)) == (accepted, "2")
    assert events(store) == [("canary.accepted", "it is fine")]
    deploy(store, "3", TENTH)
    store.canaries.end_canary(only(store).canary_id, CanaryState.REJECTED, "ann", "no")
    assert list(conditions(store, shop.clock.now)) == [], "she knows"


def test_the_first_version_of_a_package_has_no_canary(harness: Harness) -> None:
    deploy(harness.store, "1", TENTH)
    assert (current(harness.store), harness.store.canaries.list_canaries()) == ("1", [])


PRESS = {"name": "press", "image": "registry/press:1"}


def set_press(store: Store, image: str, canary: CanarySettings | None = None) -> bool:
    document = {**PRESS, "image": f"registry/press:{image}"}
    return store.entries.set_entry("press", document, "ann", canary=canary)[1]


def in_use(store: Store) -> str:
    entry = store.entries.get_entry("press")
    assert entry is not None
    return str(entry.number)


def begin_press(harness: Harness, name: str) -> tuple[Fence, str]:
    """A start that names no version; the run and its version."""
    store = harness.store
    found = replace(CrawlerDefinition("press", image="registry/press"), number=int(in_use(store)))
    request = pinned(RunRequest(crawler="press"), found, store.versions)
    fields = {"version": request.version, "canary": request.canary}
    fence = harness.deployed(name, crawler="press", **fields)
    version = store.runs.request_of(fence.run_id).version
    assert version is not None
    return fence, version


@pytest.fixture
def press(harness: Harness) -> Harness:
    """An entry with one version and five runs of it."""
    assert set_press(harness.store, "1")
    for n in range(5):
        fence, version = begin_press(harness, f"old-{n}")
        assert version == "1"
        finish(harness, fence)
    return harness


def test_a_broken_image_of_an_entry_reaches_a_tenth_of_the_runs_and_goes_back(
    press: Harness,
) -> None:
    store = press.store
    deploy(store, "1", package="press")  # a package with the same name changes nothing
    assert set_press(store, "2", TENTH)
    assert not set_press(store, "2", TENTH), "a repeat"
    keeper = CanaryKeeper(store)
    used = []
    tried = []
    for n in range(STARTS):
        fence, version = begin_press(press, f"run-{n}")
        used.append(version)
        if version == "2":
            tried.append(str(fence.run_id))
        if store.canaries.open_canary("press", of_entry=True) is not None:
            finish(press, fence, price=0.0 if version == "2" else 0.98)
            keeper.once()
    assert used[0] == "2", "the first one at once"
    row = only(store)
    assert (used.count("2"), row.given, row.asked, row.state) == (2, 2, 11, "rejected")
    assert (row.package, row.crawler, in_use(store)) == (None, "press", "1")
    [(type, said)] = events(store)
    assert (type, said) == (
        "canary.rejected",
        "press 2 was rolled back to 1: press: price: 0 % of 100 items have it, the usual share is 98 % "
        f"(median of 10 runs), expected at least 69 % (runs {', '.join(tried)})",
    )
    [found] = conditions(store, press.clock.now)
    assert (found.kind, found.subject, found.cause) == ("canary_rejected", "crawlers/press", said)
    assert set_press(store, "3")
    assert list(conditions(store, press.clock.now)) == []
    assert in_use(store) == "3"


def test_a_good_version_of_an_entry_comes_into_use(press: Harness) -> None:
    store = press.store
    set_press(store, "2", CanarySettings(0.5))
    keeper = CanaryKeeper(store)
    for n in range(5):
        assert in_use(store) == "1"
        finish(press, begin_press(press, f"run-{n}")[0])
        keeper.once()
    assert (in_use(store), only(store).state) == ("2", "accepted")
    assert events(store) == [("canary.accepted", "press 2 replaced 1: 0 of 3 runs were bad")]
    [event] = [one for one in store.events.events_after(0, 5000) if one.type == "canary.accepted"]
    assert (event.subject, event.body["crawler"]) == ("crawlers/press", "press")
    assert event.body["package"] is None


def test_a_change_a_choice_or_a_deletion_of_the_entry_cancels_it(press: Harness) -> None:
    store = press.store
    deploy(store, "1", package="press")
    deploy(store, "2", TENTH, package="press")
    set_press(store, "2", TENTH)
    set_press(store, "3", TENTH)
    newest, before = store.canaries.list_canaries(crawler="press")
    assert (before.state, before.result) == ("cancelled", "version 3 was set")
    assert (newest.old_version, newest.new_version, newest.state) == ("1", "3", "open")
    store.entries.use_entry("press", 1, "bob")
    [newest, *_] = store.canaries.list_canaries(crawler="press")
    assert (newest.state, newest.ended_by, newest.result) == (
        "cancelled",
        "bob",
        "version 1 was chosen",
    )
    set_press(store, "4", TENTH)
    store.entries.delete_entry("press")
    assert store.canaries.list_canaries(crawler="press")[0].state == "cancelled"
    [of_package] = store.canaries.list_canaries(package="press")
    assert of_package.state == "open", "the package has a canary of its own"
    assert events(store) == []


def test_the_choice_of_the_tried_version_accepts_it(press: Harness) -> None:
    store = press.store
    deploy(store, "1")
    deploy(store, "2", TENTH)
    store.packages.use_version("shop", "2", "ann")
    set_press(store, "2", TENTH)
    store.entries.use_entry("press", 2, "bob")
    found = [(row.state, row.ended_by, row.result) for row in store.canaries.list_canaries()]
    chosen = "version 2 was chosen"
    assert found == [("accepted", "bob", chosen), ("accepted", "ann", chosen)]
    assert events(store) == [("canary.accepted", chosen)] * 2


def test_a_roll_back_skips_what_only_canaries_tried(press: Harness) -> None:
    """Whatever people write as reasons, and however many canaries there were."""
    store = press.store
    for number in range(2, 60):
        set_press(store, str(number), TENTH)
        reason = f"version {number} was chosen"
        if number % 2:
            store.canaries.end_canary(only(store).canary_id, CanaryState.REJECTED, "ann", reason)
    set_press(store, "60", TENTH)
    store.entries.use_entry("press", 60, "ann")
    set_press(store, "61")
    assert [store.entries.roll_back("press", "ann").number for _ in range(2)] == [60, 1]
    with pytest.raises(NotInThisState, match="no version before version 1 that was in use"):
        store.entries.roll_back("press", "ann")
    deploy(store, "1")
    with pytest.raises(NotInThisState, match="comes from package 'shop'"):
        store.entries.roll_back("shop-1", "ann")
    with limited("other"), pytest.raises(RunNotFound):
        store.entries.roll_back("press", "ann")


def test_people_end_the_canary_of_an_entry(press: Harness) -> None:
    store = press.store
    set_press(store, "2", TENTH)
    accepted = store.canaries.end_canary(
        only(store).canary_id, CanaryState.ACCEPTED, "ann", "it is fine"
    )
    assert (accepted.state, in_use(store)) == ("accepted", "2")
    set_press(store, "3", TENTH)
    store.canaries.end_canary(only(store).canary_id, CanaryState.REJECTED, "ann", "no")
    assert in_use(store) == "2"
    assert list(conditions(store, press.clock.now)) == [], "she knows"


def test_an_entry_that_names_a_package_has_no_canary_of_its_own(harness: Harness) -> None:
    entries = harness.store.entries
    packaged = {"name": "press", "package": "press"}
    set_press(harness.store, "1")
    with pytest.raises(InvalidRequest, match="runs of crawler 'press' execute package 'press'"):
        entries.set_entry("press", packaged, None, canary=TENTH)
    entries.set_entry("press", packaged, None)
    with pytest.raises(InvalidRequest, match=r"canary: 0\.1 is not allowed"):
        set_press(harness.store, "2", TENTH)


def test_a_canary_tries_only_what_its_version_decides(press: Harness) -> None:
    limited = {**PRESS, "image": "registry/press:2", "limits": {"run_timeout_s": 60}}
    why = "all runs take limits from the current version; set it without canary"
    with pytest.raises(InvalidRequest, match=why):
        press.store.entries.set_entry("press", limited, None, canary=TENTH)
    assert press.store.canaries.list_canaries() == []


def test_a_version_that_an_older_build_set_is_not_replaced(press: Harness) -> None:
    """Builds before canaries of entries change an entry, and leave its canary open."""
    store = press.store
    set_press(store, "2", TENTH)
    set_press(store, "3", TENTH)
    with store.database.writing() as conn:
        conn.execute(update(catalogue_entry).values(number=2))
    ended = store.canaries.end_canary(only(store).canary_id, CanaryState.ACCEPTED, "ann", "good")
    assert (ended.state, ended.result) == ("cancelled", "another version was set")
    assert only(store).state == "cancelled"
    assert (in_use(store), events(store)) == ("2", [])


def test_the_first_version_of_an_entry_has_no_canary(harness: Harness) -> None:
    assert set_press(harness.store, "1", TENTH)
    assert (in_use(harness.store), harness.store.canaries.list_canaries()) == ("1", [])
