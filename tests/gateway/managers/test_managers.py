"""Managers over HTTP: one row and one workflow for each, whatever happens on the way."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import StoreUnavailable, TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.features.managers.domain.manager import (
    BUILT_IN,
    PAGE_ITEMS,
    Decision,
    JobState,
    ManagerOrder,
)
from crawler_lifecycle.features.managers.ports import (
    CODE_READING,
    HEARD_S,
    LiveManagers,
    ManagerFence,
    ManagerRow,
    UserCodeRow,
)
from crawler_lifecycle.gateway.sweep import GRACE
from crawler_lifecycle.ports.runs import Owner
from tests.contracts.store.managing import Managed
from tests.gateway.gateway_harness import Harness

OPTIONS = [{"name": name} for name in ("--flow-id", "--spider-args", "--units", "--priority")]
OPTIONS.append({"name": "-c", "aliases": ["--category"]})
SHOPS = UserCodeRow(
    "shops.managers:Shops", "manager", "shops", "Every shop once a night", "f1", OPTIONS
)
MODULE = UserCodeRow("shops.managers", "module", None, "", "f1")
GONE = UserCodeRow(
    "shops.gone", "module", None, "", "", error="ModuleNotFoundError: No module named 'shops.gone'"
)
BROKEN = UserCodeRow(
    "shops.managers:Old",
    "manager",
    None,
    "",
    "f1",
    error="ImportError: no module named scrapinghub",
)
ITEMS = {"crawler": "plain", "flow_id": "f-1"}


@pytest.fixture(autouse=True)
def nobody_waits_for_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for workflows, because none of them records anything here."""
    monkeypatch.setattr("crawler_lifecycle.features.managers.gateway.commands.RECORDED_S", ())


@pytest.fixture
def registered(harness: Harness) -> None:
    harness.store.user_code.register_user_code("worker-1", [SHOPS, BROKEN, MODULE, GONE])


def row_of(harness: Harness, manager_id: int) -> ManagerRow:
    return harness.manager(manager_id)


def claim(harness: Harness, manager_id: int) -> ManagerFence:
    """Let the open workflow of the manager claim it, and a process load its class."""
    row = row_of(harness, manager_id)
    workflow_id = f"manager/{row.name}/{row.flow_id}"
    row = harness.store.managers.claim_manager(
        manager_id, Owner(workflow_id, harness.workflows.open[workflow_id])
    )
    assert row.owner_run_id is not None
    fence = ManagerFence(manager_id, row.attempt, row.owner_run_id)
    harness.store.managers.new_generation(fence, "f1", None)
    return fence


def end(harness: Harness, manager_id: int, fence: ManagerFence) -> None:
    """End it, and close its workflow."""
    row = harness.store.managers.end_manager(
        fence, RunStatus.COMPLETED, "finished", "No jobs are left"
    )
    harness.workflows.open.pop(f"manager/{row.name}/{row.flow_id}")


def start(client: TestClient, key: str | None = None, **body: Any) -> Any:
    return client.post("/v1/managers", json=body, headers={"Idempotency-Key": key} if key else {})


def started(client: TestClient, **body: Any) -> int:
    answer = start(client, **body)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["manager_id"])


# --- start ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_a_class_is_started_with_its_options(harness: Harness, client: TestClient) -> None:
    answer = start(
        client, plan=SHOPS.plan, argv=["--flow-id", "nightly", "--category=books"], tags=["b", "a"]
    )
    found = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/managers/{found['manager_id']}"
    assert (found["name"], found["flow_id"], found["status"]) == (
        "shops",
        "nightly",
        "INITIALIZING",
    )
    assert harness.workflows.managers == [("manager/shops/nightly", found["manager_id"])]
    row = row_of(harness, found["manager_id"])
    assert (row.plan, row.options["argv"]) == (
        SHOPS.plan,
        ["--flow-id", "nightly", "--category=books"],
    )
    assert row.tags == ["a", "b"]


NAMELESS_OPTIONS = [
    *OPTIONS,
    {"name": "--quick", "aliases": ["-q"], "type": "flag"},
    {"name": "name"},
    {"name": "spider"},
]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"name": "one"}, "one"),
        ({"argv": ["two", "shops"]}, "two"),
        ({"argv": ["--units", "3", "-q", "--flow-id=f", "two", "shops"]}, "two"),
        ({"argv": ["shops"], "name": "one"}, "one"),
    ],
)
def test_a_class_without_a_name_gets_one_by_either_api(
    harness: Harness, client: TestClient, body: dict[str, Any], name: str
) -> None:
    nameless = replace(SHOPS, plan="shops.managers:Any", name=None, options=NAMELESS_OPTIONS)
    harness.store.user_code.register_user_code("worker-1", [nameless])
    found = start(client, plan=nameless.plan, **body)
    assert (found.status_code, found.json().get("name")) == (202, name)
    missing = start(client, plan=nameless.plan, argv=["--units", "3"])
    assert (missing.status_code, missing.json()["detail"].partition(";")[0]) == (
        422,
        "name: missing, and the class has none",
    )


def test_a_crawler_is_started_with_options_of_the_built_in_manager(
    harness: Harness, client: TestClient
) -> None:
    options = {
        "args": {"site": "http://a"},
        "settings": {},
        "max_running": 20,
        "max_per_key": {"page": 2},
        "retries": 3,
    }
    found = start(client, crawler="plain", options=options).json()
    assert (found["plan"], found["crawler"], found["name"], found["sealed"]) == (
        BUILT_IN,
        "plain",
        "plain",
        False,
    )
    words = ["plain", "--max-running-jobs", "20", "--retries", "3", "--max-per-key", "page=2"]
    assert found["argv"] == [*words, "--spider-args", '{"site": "http://a"}']


@pytest.mark.usefixtures("registered")
def test_only_what_a_worker_registered_can_be_started(client: TestClient) -> None:
    unknown = start(client, plan="os:system")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_class")
    assert (
        "known: shops.managers:Old, shops.managers:Shops; name its module in"
        in unknown.json()["detail"]
    )
    module = start(client, plan=MODULE.plan)
    assert (module.status_code, module.json()["code"]) == (422, "unknown_class")
    gone = start(client, plan="shops.gone:Any")
    assert (gone.status_code, gone.json()["code"]) == (422, "user_code_unusable")
    assert "No module named 'shops.gone'" in gone.json()["detail"]
    unusable = start(client, plan=BROKEN.plan)
    assert (unusable.status_code, unusable.json()["code"]) == (422, "user_code_unusable")
    assert "no module named scrapinghub" in unusable.json()["detail"]
    for word in ("--categroy=books", "--flow"):
        refused = start(client, plan=SHOPS.plan, argv=["--cat", "-x", word, "--", "--that"])
        assert refused.json()["detail"].startswith(
            f"argv[2]: {word.partition('=')[0]!r} is not allowed"
        ), refused.text


def test_before_any_worker_a_class_is_taken_on_trust_and_told_so(client: TestClient) -> None:
    nameless = start(client, plan=SHOPS.plan)
    assert (nameless.status_code, nameless.json()["code"]) == (503, "user_code_unknown")
    assert int(nameless.headers["retry-after"]) >= 1
    assert nameless.json()["detail"].startswith(
        "name: missing, and no user-code worker has registered"
    )
    short = start(client, plan="Shops", name="shops")
    assert (short.status_code, "give module:Class" in short.json()["detail"]) == (503, True)
    assert (
        "No user-code worker has registered"
        in start(client, plan=SHOPS.plan, name="shops").json()["note"]
    )


def test_in_the_first_seconds_of_a_worker_no_class_is_called_unknown(
    harness: Harness, client: TestClient
) -> None:
    """This also holds next to a worker that never had it, and where others were before."""
    user_code = harness.store.user_code
    user_code.register_user_code("gone", [replace(SHOPS, plan="shops.managers:Former")])
    harness.clock.now += timedelta(seconds=HEARD_S + 1)
    assert "No user-code worker" in start(client, plan=SHOPS.plan, name="trusted").json()["note"]
    user_code.register_user_code("other", [replace(SHOPS, plan="books:Books")])
    assert start(client, plan=SHOPS.plan, name="shops").json()["code"] == "unknown_class"
    user_code.register_user_code("worker-1", [replace(MODULE, kind=CODE_READING)])
    for body in (
        {"plan": SHOPS.plan},
        {"plan": SHOPS.plan, "name": "shops"},
        {"plan": "Shops", "name": "shops"},
    ):
        early = start(client, **body)
        assert (early.status_code, early.json()["code"]) == (503, "user_code_unknown"), early.text
        assert int(early.headers["retry-after"]) >= 1
    assert start(client, plan="os:system", name="x").json()["code"] == "unknown_class"
    user_code.register_user_code("worker-1", [SHOPS, MODULE])
    assert start(client, plan=SHOPS.plan).status_code == 202


def test_of_two_codes_of_a_class_either_may_take_its_options(
    harness: Harness, client: TestClient
) -> None:
    """Two builds serve one queue for a while: the one that is asked may be the one that has the
    option.
    """
    user_code = harness.store.user_code
    user_code.register_user_code("old", [SHOPS])
    harness.clock.now += timedelta(seconds=1)
    user_code.register_user_code(
        "new", [replace(SHOPS, fingerprint="f2", options=[{"name": "--country"}])]
    )
    shown = [
        row for row in client.get("/v1/user-code").json()["user_code"] if row["plan"] == SHOPS.plan
    ]
    assert [(row["fingerprint"], row["served"]) for row in shown] == [("f2", True), ("f1", True)]
    assert start(client, plan=SHOPS.plan, argv=["--units", "2"]).status_code == 202
    assert start(client, plan=SHOPS.plan, argv=["--country", "de"]).status_code == 202
    refused = start(client, plan=SHOPS.plan, argv=["--categroy", "de"])
    assert (refused.status_code, "argv[0]" in refused.json()["detail"]) == (422, True)


def test_a_flow_id_in_a_named_command_line_is_that_of_the_manager(
    harness: Harness, client: TestClient
) -> None:
    program = {"name": "-g", "aliases": ["--program"], "flow_ids": {"nightly": "n1"}}
    harness.store.user_code.register_user_code(
        "worker-1", [replace(SHOPS, options=[*OPTIONS, program])]
    )
    first = start(client, plan=SHOPS.plan, argv=["--program", "nightly"]).json()
    assert first["flow_id"] == "n1"
    again = start(client, plan=SHOPS.plan, argv=["--program=nightly"]).json()
    assert again["code"] == "idempotency_mismatch", "the same flow, with other words"
    assert start(client, "k", plan=SHOPS.plan, argv=["-g", "hourly"]).json()["flow_id"] != "n1"
    own = start(client, plan=SHOPS.plan, argv=["-g", "nightly", "--flow-id", "n2"]).json()
    assert own["flow_id"] == "n2", "what the request says itself goes before"
    both = start(client, plan=SHOPS.plan, argv=["-g", "nightly"], flow_id="n3")
    assert (both.status_code, "'n3' and --flow-id 'n1' differ" in both.json()["detail"]) == (
        422,
        True,
    )


def test_the_same_key_is_one_manager_also_after_its_end(
    harness: Harness, client: TestClient
) -> None:
    body = {"crawler": "plain", "options": {"retries": 1}}
    first = start(client, "k", **body)
    again = start(client, '"k"', **body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["manager_id"] == first.json()["manager_id"]
    end(harness, first.json()["manager_id"], claim(harness, first.json()["manager_id"]))
    late = start(client, "k", **body)
    assert (late.json()["manager_id"], late.json()["status"]) == (
        first.json()["manager_id"],
        "COMPLETED",
    )
    assert len(harness.workflows.managers) == 1
    other = start(client, "k", crawler="plain", options={"retries": 2})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert start(client, "j", **body).json()["manager_id"] != first.json()["manager_id"]


def test_the_same_flow_is_found_while_it_lives_and_resumed_after_its_end(
    harness: Harness, client: TestClient
) -> None:
    one = started(client, **ITEMS)
    assert start(client, **ITEMS).headers["Idempotency-Replayed"] == "true"
    other = start(client, **ITEMS, options={"retries": 9})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert "flow_id" in other.json()["detail"]
    end(harness, one, claim(harness, one))
    resumed = start(client, **ITEMS, options={"retries": 9})
    assert resumed.status_code == 202
    assert "Idempotency-Replayed" not in resumed.headers
    assert len(harness.workflows.managers) == 2
    fence = claim(harness, one)
    assert (fence.attempt, row_of(harness, one).options["argv"][-1]) == (2, "9")


def test_a_class_whose_name_no_manager_can_have_needs_another_one(
    harness: Harness, client: TestClient
) -> None:
    """In a workflow id, its slash would refer to another manager."""
    harness.store.user_code.register_user_code("worker-1", [replace(SHOPS, name="läden/nachts")])
    refused = start(client, plan=SHOPS.plan)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert "'läden/nachts'" in refused.json()["detail"]
    found = start(client, plan=SHOPS.plan, name="shops").json()
    assert found["name"] == "shops"


# --- Temporal is away, a gateway dies -------------------------------------------------------------


async def test_what_was_accepted_while_temporal_was_away_begins_by_itself(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.down = True
    answer = start(client, **ITEMS)
    assert answer.status_code == 202
    assert "as soon as Temporal can be reached" in answer.json()["note"]
    elsewhere = harness.sweep()
    assert await elsewhere.once() == 0
    harness.clock.forward(GRACE.total_seconds())
    with pytest.raises(TemporalUnavailable):
        await elsewhere.once()
    harness.workflows.down = False
    assert await elsewhere.once() == 1
    assert harness.workflows.managers == [("manager/plain/f-1", answer.json()["manager_id"])]
    claim(harness, answer.json()["manager_id"])
    assert await elsewhere.once() == 0


async def test_a_stop_that_nobody_was_told_of_is_told_by_the_sweep(
    harness: Harness, client: TestClient
) -> None:
    one = started(client, **ITEMS)
    claim(harness, one)
    harness.workflows.down = True
    answer = client.post(f"/v1/managers/{one}/stop", json={"reason": "wrong list"})
    assert (answer.status_code, answer.json()["status"]) == (202, "STOPPING")
    assert "as soon as Temporal" in answer.json()["note"]
    harness.workflows.down = False
    elsewhere = harness.sweep()
    harness.clock.forward(GRACE.total_seconds())
    assert await elsewhere.once() == 1
    assert harness.workflows.woken == ["manager/plain/f-1"]
    # Again only after a pause, because each signal is an event in its history.
    assert await elsewhere.once() == 0
    harness.clock.forward(15)
    assert await elsewhere.once() == 1


def test_what_no_row_would_remember_is_refused_while_temporal_is_away(
    harness: Harness, client: TestClient
) -> None:
    """A command is a row, which the next cycle reads. A resume after the end has no row, and is
    therefore refused.
    """
    one = started(client, **ITEMS)
    fence = claim(harness, one)
    harness.workflows.down = True
    assert (
        "within five minutes"
        in client.post(f"/v1/managers/{one}/limit", json={"cap": 5}).json()["note"]
    )
    harness.workflows.down = False
    end(harness, one, fence)
    harness.workflows.down = True
    resumed, again = client.post(f"/v1/managers/{one}/resume"), start(client, **ITEMS)
    assert [answer.json()["code"] for answer in (resumed, again)] == ["temporal_unavailable"] * 2
    assert "was not resumed" in resumed.json()["detail"]


def test_a_resume_waits_for_the_workflow_that_closes(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.managers.gateway.commands.CLOSING_S", (0.0,))
    one = started(client, **ITEMS)
    fence = claim(harness, one)
    harness.store.managers.end_manager(fence, RunStatus.COMPLETED, "finished", "No jobs are left")
    for early in (client.post(f"/v1/managers/{one}/resume"), start(client, **ITEMS)):
        assert (early.status_code, early.json()["code"]) == (409, "not_in_this_state")
        assert "send this again" in early.json()["detail"]
    harness.workflows.open.clear()
    assert client.post(f"/v1/managers/{one}/resume").status_code == 202
    assert claim(harness, one).attempt == 2


def test_a_resume_is_answered_when_the_next_attempt_is_on_record(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that waits directly after the resume (`crawlctl manager resume 2; crawlctl manager
    wait 2`) does not get the previous outcome.
    """
    monkeypatch.setattr(
        "crawler_lifecycle.features.managers.gateway.commands.RECORDED_S", (0.0, 0.0, 0.0)
    )
    one = started(client, **ITEMS)
    end(harness, one, claim(harness, one))
    begin = harness.workflows.start_for

    async def recorded(order: ManagerOrder, workflow_id: str) -> str:
        chain = await begin(order, workflow_id)
        harness.store.managers.claim_manager(order.manager_id, Owner(workflow_id, chain))
        return chain

    monkeypatch.setattr(harness.workflows, "start_for", recorded)
    resumed = client.post(f"/v1/managers/{one}/resume").json()
    assert (resumed["attempt"], resumed["status"], resumed["ended_at"]) == (2, "INITIALIZING", None)


# --- steering -------------------------------------------------------------------------------------


def test_stop_is_on_record_before_it_is_told_and_once(harness: Harness, client: TestClient) -> None:
    one = started(client, **ITEMS)
    fence = claim(harness, one)
    first = client.post(f"/v1/managers/{one}/stop", json={"leave": True, "requested_by": "eve"})
    assert (first.status_code, first.json()["leave"]) == (202, True)
    assert first.json()["stop"]["requested_by"] == "eve"
    assert client.post(f"/v1/managers/{one}/stop", json={"leave": True}).status_code == 200
    assert client.post(f"/v1/managers/{one}/stop", json={"force": True}).status_code == 202
    assert client.post(f"/v1/managers/{one}/limit", json={"cap": 3}).status_code == 409
    assert client.post(f"/v1/managers/{one}/resume").status_code == 409
    assert client.post(f"/v1/managers/{one}/jobs", json={"seal": True}).status_code == 409
    harness.store.managers.end_manager(fence, RunStatus.FAILED, "cancelled", "Stopped by eve")
    ended = client.post(f"/v1/managers/{one}/stop")
    assert (ended.status_code, ended.json()["note"]) == (
        200,
        "The manager had already ended; nothing was stopped.",
    )


def test_after_its_end_what_lives_are_the_runs_that_it_left(
    harness: Harness, client: TestClient
) -> None:
    """No cycle sees their ends, so the manager's own counts say nothing about them."""
    one = started(client, **ITEMS)
    fence = claim(harness, one)
    client.post(
        f"/v1/managers/{one}/jobs", json={"jobs": [{"spider_args": {"page": n}} for n in range(2)]}
    )
    Managed(cast(Any, harness), fence).pick(2, JobState.QUEUED)
    runs = []
    for n in (1, 2):
        asked = RunRequest(crawler="plain", parent="manager/plain/f-1")
        runs.append(harness.store.initiation.reserve_run(asked, f"manager/{one}/{n}")[0].run_id)
        mine = Owner(f"crawl/plain/{n}", f"chain-r{n}")
        harness.store.initiation.claim_run(RunRequest(run_id=runs[-1]), mine, lambda _: False)
    assert client.get(f"/v1/managers/{one}").json()["live"] == 2
    client.post(f"/v1/managers/{one}/stop", json={"leave": True})
    harness.store.managers.end_manager(fence, RunStatus.FAILED, "cancelled", "Stopped")
    for left in (2, 1, 0):
        answer, [listed] = (
            client.get(f"/v1/managers/{one}").json(),
            client.get("/v1/managers").json()["managers"],
        )
        assert (answer["live"], listed["live"]) == (left, left)
        if left:
            harness.end(runs.pop(), close=False)


def test_pause_resume_and_cap_are_rows_that_a_signal_tells_of(
    harness: Harness, client: TestClient
) -> None:
    one = started(client, **ITEMS)
    fence = claim(harness, one)
    steps = [
        ("pause", None, 202),
        ("pause", None, 200),
        ("resume", None, 202),
        ("resume", None, 200),
    ]
    steps += [("limit", {"cap": 5}, 202), ("limit", {"cap": 5}, 200), ("limit", {"cap": 0}, 202)]
    for action, body, status in steps:
        assert client.post(f"/v1/managers/{one}/{action}", json=body).status_code == status, action
    # Even for a resume that changes nothing, because it may have no workflow.
    assert harness.workflows.woken == ["manager/plain/f-1"] * 5
    row = row_of(harness, one)
    assert (row.paused, row.cap) == (False, None)
    end(harness, one, fence)
    assert client.post(f"/v1/managers/{one}/pause").status_code == 409
    assert "next attempt" in client.post(f"/v1/managers/{one}/resume").json()["note"]
    assert len(harness.workflows.managers) == 2


# --- jobs -----------------------------------------------------------------------------------------


def test_a_page_of_jobs_is_added_once_over_what_the_manager_was_started_with(
    harness: Harness, client: TestClient
) -> None:
    one = started(client, **ITEMS, options={"args": {"site": "http://a", "page": "0"}})
    body = {
        "jobs": [
            {"spider_args": {"page": 1}},
            {"spider_args": {"page": "1"}},
            {"spider_args": {"page": None}},
        ]
    }
    for _ in range(2):
        answer = client.post(
            f"/v1/managers/{one}/jobs", json=body, headers={"Idempotency-Key": "p/1"}
        )
        assert answer.status_code == 202, answer.text
        assert (answer.json()["jobs"], answer.json()["new"], answer.json()["sealed"]) == (
            3,
            2,
            False,
        )
    rows = harness.store.managers.list_jobs(one)
    assert [row.job.spider_args for row in rows if row.job] == [
        {"site": "http://a", "page": "1"},
        {"site": "http://a"},
    ]
    assert {row.state for row in rows} == {JobState.QUEUED}
    other = client.post(
        f"/v1/managers/{one}/jobs", json={"jobs": [{}]}, headers={"Idempotency-Key": "p/1"}
    )
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert client.post(f"/v1/managers/{one}/jobs", json={"seal": True}).json()["sealed"] is True
    assert row_of(harness, one).sealed


@pytest.mark.usefixtures("registered")
def test_a_job_of_a_class_names_its_spider_and_has_its_options(
    harness: Harness, client: TestClient
) -> None:
    argv = [
        "--spider-args",
        '{"page": 1, "deep": [1, 2]}',
        "--units=2",
        "--priority=4",
        "--flow-id",
        "f",
    ]
    one = started(client, plan=SHOPS.plan, argv=argv)
    assert (
        "jobs[0].spider: missing"
        in client.post(f"/v1/managers/{one}/jobs", json={"jobs": [{}]}).text
    )
    answer = client.post(
        f"/v1/managers/{one}/jobs",
        json={"jobs": [{"spider": "books", "spider_args": {"page": 2.5}}]},
    )
    assert answer.status_code == 202, answer.text
    [row] = harness.store.managers.list_jobs(one)
    assert row.job is not None
    assert (row.job.spider, row.job.spider_args, row.job.units) == (
        "books",
        {"page": "2.5", "deep": "[1, 2]"},
        2,
    )
    assert row.job.priority == 4


def test_jobs_that_cannot_be_are_refused_by_their_place(
    harness: Harness, client: TestClient
) -> None:
    for jobs, said in [
        ([{}, {"spider_args": {"pgae": "1"}}], "jobs[1].args.pgae: unknown argument"),
        ([{"spider": "strict"}], "jobs[0]: the built-in manager runs only the crawler 'plain'"),
        ([{"spider_args": {"page": "x\0"}}], "NUL"),
        ([{"job_settings": {"LOG_FILE": "/etc/passwd"}}], "jobs[0]."),
        ([{"spider_args": {"page": "x" * 70_000}}], "jobs[0].args: "),
        ([{"tags": ["x" * 201]}], "jobs[0].tags[0]"),
        ([{"units": 0}], "jobs[0].units"),
        ([{"priority": 6}], "jobs[0].priority"),
        ([{}] * (PAGE_ITEMS + 1), "jobs"),
        ([], "jobs: empty"),
        ([{"spider_args": {"page": "x" * 9_000}}] * 40, "bytes are too many for a page"),
        ([{"spider_args": {"page": {"a": [1, {"b": None}]}}}], ""),
    ]:
        one = started(client, **ITEMS)
        answer = client.post(f"/v1/managers/{one}/jobs", json={"jobs": jobs})
        assert answer.status_code == (422 if said else 202), answer.text
        assert said in answer.json().get("detail", "")
        assert len(harness.store.managers.list_jobs(one)) == (0 if said else 1)


# --- hostile starts -------------------------------------------------------------------------------


def test_a_start_that_cannot_work_is_refused_by_its_field(
    harness: Harness, client: TestClient
) -> None:
    for body, field in [
        ({}, "plan"),
        ({"plan": "a:B", "crawler": "plain", "name": "n"}, "plan"),
        ({"crawler": "nobody"}, "crawler"),
        ({"crawler": "plain", "argv": ["--x"]}, "argv"),
        ({"plan": "a:B", "name": "n", "options": {}}, "options"),
        ({"plan": "a:B", "name": "n", "argv": ["a\0b"]}, "argv[0]"),
        ({"plan": "a:B", "name": "n", "argv": ["x"] * 201}, "argv"),
        ({"plan": "a:B", "name": "n", "argv": ["x" * 8000] * 20}, "body"),
        ({"plan": "a:B", "name": "n", "flow_id": "a", "argv": ["--flow-id", "b"]}, "flow_id"),
        ({"plan": "a:B", "name": "n", "argv": ["--flow-id=a/b"]}, "argv"),
        ({"crawler": "plain", "name": "../etc"}, "name"),
        ({"crawler": "plain", "name": "n" * 64}, "name"),
        ({"crawler": "plain", "flow_id": "a/b"}, "flow_id"),
        ({"crawler": "plain", "flow_id": "a\nb"}, "flow_id"),
        ({"crawler": "plain", "flow_id": "x" * 121}, "flow_id"),
        ({"crawler": "plain", "tags": ["t"] * 51}, "tags"),
        ({"crawler": "plain", "tags": ["t", "FLOW_ID=x"]}, "tags[1]"),
        ({"crawler": "plain", "options": {"max_running": 0}}, "options.max_running"),
        ({"crawler": "plain", "options": {"max_running": True}}, "options.max_running"),
        ({"crawler": "plain", "options": {"max_per_key": {"page": 0}}}, "options.max_per_key.page"),
        ({"crawler": "plain", "options": {"max_per_key": {"pgae": 1}}}, "options.max_per_key"),
        ({"crawler": "plain", "options": {"args": {"pgae": "1"}}}, "options.args.pgae"),
        ({"crawler": "plain", "options": {"settings": {"LOG_FILE": "/x"}}}, "settings.LOG_FILE"),
        ({"crawler": "plain", "request_id": "a" * 121}, "request_id"),
        ({"crawler": "plain", "run_id": 7}, "run_id"),
    ]:
        answer = start(client, **body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"].startswith(field), answer.json()["detail"]
        assert harness.store.managers.newest() == []
        assert harness.workflows.managers == []


def test_what_does_not_exist_is_told_so(client: TestClient) -> None:
    for action in ["stop", "pause", "resume", "limit", "jobs"]:
        body = {"limit": {"cap": 1}, "jobs": {"seal": True}}.get(action)
        answer = client.post(f"/v1/managers/999/{action}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "manager_not_found"), action


# --- reading --------------------------------------------------------------------------------------


def test_managers_are_listed_newest_first_page_by_page(
    harness: Harness, client: TestClient
) -> None:
    ids = [started(client, crawler="plain", name=f"n{n % 2}", flow_id=f"f-{n}") for n in range(5)]
    claim(harness, ids[0])
    page = client.get("/v1/managers", params={"page_size": 3}).json()
    rest = client.get(
        "/v1/managers", params={"page_size": 3, "page_token": page["next_page_token"]}
    ).json()
    assert [row["manager_id"] for row in page["managers"] + rest["managers"]] == ids[::-1]
    assert rest["next_page_token"] is None

    def listed(**params: str) -> list[int]:
        return [
            row["manager_id"]
            for row in client.get("/v1/managers", params=params).json()["managers"]
        ]

    assert listed(name="n1") == [ids[3], ids[1]]
    assert listed(status="PROCESSING") == [ids[0]]
    assert listed(name="n0", flow_id="f-2") == [ids[2]]
    assert listed(name="n1", flow_id="f-2") == []
    assert client.get("/v1/managers", params={"flow_id": "f-2"}).status_code == 422
    assert client.get("/v1/managers", params={"nmae": "n1"}).status_code == 422
    assert listed(search="F-2") == [ids[2]]
    assert listed(sort="-flow_id", page_size="2") == [ids[4], ids[3]]
    wrong = client.get("/v1/managers", params={"name": "n0", "flow_id": "f-2", "search": "x"})
    assert "flow_id: selects one manager" in wrong.json()["detail"]
    assert "choose from name" in client.get("/v1/managers", params={"sort": "request"}).text


def test_the_page_of_managers_is_searched_and_put_in_order(client: TestClient) -> None:
    ids = [started(client, crawler="plain", name=f"n{n}", flow_id=f"f-{n}") for n in range(3)]

    def found(query: str) -> tuple[list[int], str, list[str]]:
        page = client.get(f"/managers?{query}", headers={"Accept": "text/html"}).text
        shown = [
            int(one) for one in re.findall(r'<th scope="row"[^>]*><a href="/managers/(\d+)"', page)
        ]
        [total], chips = (
            re.findall(r'id="total">([^<]*)<', page),
            re.findall(r'class="chip" href="([^"]*)"', page),
        )
        return shown, total, [html.unescape(one) for one in chips]

    assert found("") == (ids[::-1], "3 managers", [])
    assert found("search=F-1") == ([ids[1]], "1 manager", ["/managers"])
    assert found("search=nobody") == ([], "0 managers", ["/managers"])
    assert found("sort=name&status=INITIALIZING&status=FAILED") == (
        ids,
        "3 managers",
        [
            "/managers?status=INITIALIZING&status=FAILED",
            "/managers?sort=name&status=FAILED",
            "/managers?sort=name&status=INITIALIZING",
        ],
    )
    page = client.get("/managers?sort=name").text
    assert 'aria-sort="ascending"><a href="/managers?sort=-name">Name</a>' in page


def test_a_manager_and_its_jobs_say_how_they_are(harness: Harness, client: TestClient) -> None:
    one = started(client, **ITEMS)
    assert (
        "waiting for a worker; crawlctl doctor shows"
        in client.get(f"/v1/managers/{one}").json()["waiting"]
    )
    fence = claim(harness, one)
    client.post(
        f"/v1/managers/{one}/jobs", json={"jobs": [{"spider_args": {"page": n}} for n in range(3)]}
    )
    harness.store.managers.commit_decision(
        ManagerFence(one, fence.attempt, fence.owner_run_id, 1),
        Decision(stats={"scheduled": 0.0}, state={"page": 1}, waiting="1 of 1 runs are live"),
    )
    found = client.get(f"/v1/managers/{one}").json()
    assert (found["jobs"]["queued"], found["live"], found["state"]) == (3, 0, {"page": 1})
    assert found["waiting"] == "1 of 1 runs are live"
    client.post(f"/v1/managers/{one}/pause")
    assert client.get(f"/v1/managers/{one}").json()["waiting"] == "it is paused"
    jobs = client.get(
        f"/v1/managers/{one}/jobs", params={"state": ["queued", "skipped"], "page_size": 2}
    ).json()
    assert [job["job"]["spider_args"] for job in jobs["jobs"]] == [{"page": "0"}, {"page": "1"}]
    assert jobs["next_page_token"] is not None
    assert client.get(f"/v1/managers/{one}/jobs", params={"state": "skipped"}).json()["jobs"] == []
    assert client.get(f"/v1/managers/{one}/logs").text == ""
    harness.store.managers.keep_output(one, "crème <b>\n")
    log = client.get(f"/v1/managers/{one}/logs")
    assert (log.text, log.headers["content-type"]) == ("crème <b>\n", "text/plain; charset=utf-8")
    assert client.get("/v1/managers/999/logs").json()["code"] == "manager_not_found"


@pytest.mark.usefixtures("registered")
def test_plans_are_listed_with_who_serves_them(harness: Harness, client: TestClient) -> None:
    gone, module, old, shops = client.get("/v1/user-code").json()["user_code"]
    assert (gone["kind"], module["kind"], module["error"]) == ("module", "module", None)
    assert (shops["plan"], shops["served"], shops["options"]) == (SHOPS.plan, True, OPTIONS)
    assert old["error"] == BROKEN.error
    harness.clock.forward(3600)
    assert client.get("/v1/user-code").json()["user_code"][1]["served"] is False


def test_figures_count_what_has_not_ended(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.FRESH_S", 0.0)
    ids = [started(client, crawler="plain", flow_id=f"f-{n}") for n in range(4)]
    fences = [claim(harness, one) for one in ids[:3]]
    end(harness, ids[0], fences[0])
    harness.store.managers.note_error(fences[1], "position 3: no dictionary")
    client.post(f"/v1/managers/{ids[1]}/jobs", json={"jobs": [{}]})
    Managed(cast(Any, harness), fences[1]).pick(1, JobState.QUEUED)

    def figures() -> dict[str, str]:
        lines = client.get("/metrics").text.splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line.startswith("lifecycle_manager"))

    assert figures() == {
        'lifecycle_managers{project="default",status="INITIALIZING"}': "1.0",
        'lifecycle_managers{project="default",status="PROCESSING"}': "2.0",
        'lifecycle_managers{project="default",status="STOPPING"}': "0.0",
        'lifecycle_managers_failing{project="default"}': "1.0",
        'lifecycle_manager_jobs_live{project="default"}': "1.0",
    }
    with monkeypatch.context() as patched:
        patched.setattr(harness.store.managers, "live_managers", unreachable)
        assert set(figures().values()) == {"NaN"}


def unreachable() -> LiveManagers:
    raise StoreUnavailable("it does not answer")


def test_a_resume_takes_up_a_manager_that_no_workflow_carries(
    harness: Harness, client: TestClient
) -> None:
    one = started(client, **ITEMS)
    claim(harness, one)
    answer = client.post(f"/v1/managers/{one}/resume")
    assert (answer.status_code, answer.json()["note"]) == (200, "The manager was not paused.")
    for again in (
        lambda: client.post(f"/v1/managers/{one}/resume"),
        lambda: start(client, **ITEMS),
    ):
        harness.workflows.open.clear()  # terminated
        begun = len(harness.workflows.managers)
        answer = again()
        assert answer.status_code in (200, 202)
        assert len(harness.workflows.managers) == begun + 1
    harness.workflows.open.clear()
    answer = client.post(f"/v1/managers/{one}/resume")
    assert (answer.status_code, "it had no workflow" in answer.json()["note"]) == (202, True)
    harness.workflows.down = True
    answer = client.post(f"/v1/managers/{one}/resume")
    assert (answer.status_code, "automatically" in answer.json()["note"]) == (200, True)
