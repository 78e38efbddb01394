"""The access log and the tokens on each database."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.retention import Stays
from crawler_lifecycle.ports.access import AccessRow, TokenRow
from crawler_lifecycle.store.retention.pruning import Pruner
from crawler_lifecycle.store.store import Store
from tests.contracts.store.graphing import Graphed, step
from tests.contracts.store.harness import Harness
from tests.contracts.store.managing import Managed
from tests.contracts.store.test_pruning import DAY, prune, told
from tests.contracts.store.test_writers import together


def row(harness: Harness, **fields: object) -> AccessRow:
    given = {
        "at": harness.clock.now,
        "caller": "ann",
        "caller_project": "*",
        "operation": "stopRun",
        "address": None,
    }
    return AccessRow(**{**given, "status": 200, "outcome": "done", **fields})  # type: ignore[arg-type]


def test_a_row_gets_the_uid_and_the_project_of_its_subject(harness: Harness, store: Store) -> None:
    fence = harness.run("r")
    manager = store.managers.get_manager(Managed.begun(harness).id)
    graph = store.graphs.get_graph(Graphed.made(harness, [step("a")]).fence.graph_id)
    store.webhooks.put("portal", {"url": "https://a.example/"}, None, project="b")
    webhook = store.webhooks.get("portal")
    assert manager is not None
    assert graph is not None
    assert webhook is not None
    subjects = {
        "run": str(fence.run_id),
        "manager": str(manager.manager_id),
        "graph": graph.key,
        "webhook": "portal",
    }
    store.access.record_access(
        [row(harness, kind=kind, subject=key) for kind, key in subjects.items()]
    )
    found = [(one.kind, one.project, one.subject_uid) for one in store.access.list_access()]
    assert found[::-1] == [
        ("run", "default", fence.run_uid), ("manager", "default", manager.manager_uid),
        ("graph", "default", graph.graph_uid), ("webhook", "b", webhook.webhook_uid),
    ]  # fmt: skip
    odd = [
        "0",
        "1" * 30,
        "-1",
        "1e3",
        "\u0661",
        "",
        "x\udcff",
        "’; DROP TABLE access_log",
        "0x1",
        str(2**63),
    ]
    store.access.record_access([row(harness, kind="run", subject=one, caller="odd") for one in odd])
    store.access.record_access(
        [row(harness, kind="run", subject=subjects["run"], caller="b", caller_project="b")]
    )
    assert {(one.project, one.subject_uid) for one in store.access.list_access(caller="odd")} == {
        ("*", None)
    }
    assert [(one.project, one.subject_uid) for one in store.access.list_access(caller="b")] == [
        ("b", None)
    ]


def test_long_texts_are_cut_and_odd_ones_are_kept(harness: Harness, store: Store) -> None:
    text = "\U0001f577\u202e<b>" * 100
    store.access.record_access(
        [row(harness, caller=text, operation=text, verb=text, subject=text, address=text)]
    )
    [found] = store.access.list_access()
    assert [len(one or "") for one in (found.caller, found.operation, found.subject)] == [
        100,
        64,
        200,
    ]
    assert (found.caller or "")[:99] == text[:99]


def test_filters_and_pages_give_each_row_once_newest_first(harness: Harness, store: Store) -> None:
    for n in range(12):
        harness.clock.forward(n % 3)  # several at the same time
        store.access.record_access(
            [row(harness, caller=f"c{n % 2}", outcome="forbidden" if n == 7 else "done")]
        )
    everything = store.access.list_access(100)
    assert [one.id for one in everything] == sorted((one.id for one in everything), reverse=True)
    pages, before = [], None
    while page := store.access.list_access(5, before=before):
        pages += page
        before = (page[-1].at, page[-1].id)
    assert pages == everything
    assert [one.caller for one in store.access.list_access(caller="c1")] == ["c1"] * 6
    assert [one.caller for one in store.access.list_access(outcome="forbidden")] == ["c1"]
    middle = everything[5].at
    late = store.access.list_access(100, since=middle)
    assert late + store.access.list_access(100, until=middle) == everything
    with limited("b"):
        assert store.access.list_access() == []


def test_rows_leave_by_their_age(harness: Harness, store: Store, pruner: Pruner) -> None:
    store.access.record_access([row(harness)] * 3)
    harness.clock.forward(89 * DAY)
    store.access.record_access([row(harness, caller="bob")])
    assert told(pruner, harness, "access_log") == (0, {Stays.RECENT: 4})
    harness.clock.forward(2 * DAY)
    assert prune(pruner, harness)["access_log"] == 3
    assert [one.caller for one in store.access.list_access()] == ["bob"]


def test_a_name_that_two_want_is_given_once(harness: Harness, store: Store) -> None:
    def make(n: int) -> TokenRow:
        return store.tokens.create_token("ci", "read", "*", str(n) * 64, None, str(n))

    made = together(*(partial(make, n) for n in range(4)))
    assert sorted(type(one).__name__ for one in made) == ["NotInThisState"] * 3 + ["TokenRow"]
    [live] = store.tokens.list_tokens(live=True)
    assert live.created_by == live.sha256[0]


def test_a_use_never_goes_back(harness: Harness, store: Store) -> None:
    store.tokens.create_token(
        "ci", "read", "*", "0" * 64, harness.clock.now + timedelta(days=1), None
    )
    for seconds in (120, 60):
        store.tokens.tokens_used(
            {"0" * 64: harness.clock.now + timedelta(seconds=seconds), "9" * 64: harness.clock.now}
        )
    assert [one.used_at for one in store.tokens.list_tokens()] == [
        harness.clock.now + timedelta(seconds=120)
    ]
