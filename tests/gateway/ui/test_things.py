"""Schedules, webhooks, managers, graphs and audits: their buttons work, and have their effect once."""

from __future__ import annotations

import html
import re
import uuid
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.audit import AuditFinding, AuditReport, FindingKind
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from tests.gateway.gateway_harness import CRAWLERS, Harness
from tests.gateway.ui.conftest import as_browser, followed, results
from tests.support.fakes.services import FakeScheduler

SCHEDULE = {"run": {"crawler": "plain"}, "every_s": 3600}


def press(browser: TestClient, path: str, do: str, **more: Any) -> Any:
    answer = browser.post(path, data={"key": uuid.uuid4().hex, "do": do, **more})
    return followed(browser, answer)


def words(answer: Any) -> str:
    """Return the page's results and main part as text."""
    assert answer.status_code == 200, answer.text
    main = answer.text.partition("</header>")[2].partition("<footer")[0]
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", main).split()))


@pytest.fixture
def nightly(browser: TestClient) -> str:
    assert browser.put("/v1/schedules/nightly", json=SCHEDULE).status_code == 200
    return "/schedules/nightly"


def test_a_schedule_shows_what_comes_and_what_came(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    page = words(browser.get(nightly))
    assert "Schedule nightly active" in page
    assert page.count("+0000") == 10
    press(browser, nightly, "trigger")
    page = words(browser.get(nightly))
    due = words(browser.get(f"{nightly}/due-times"))
    assert "started" in due or "queued" in due
    assert "There have been no due times yet" not in due
    csv = browser.get(f"{nightly}/due-times?format=csv")
    assert csv.text.startswith("Due,Decision,Late,Began,Status,Why,By")
    assert "No due time matches" in words(browser.get(f"{nightly}/due-times?decision=missed"))
    assert browser.get(f"{nightly}/due-times?decision=odd").status_code == 422
    harness.clock.forward(60)
    press(browser, nightly, "trigger")
    first, second = (
        browser.get(f"{nightly}/due-times?format=csv&sort={sort}").text.splitlines()[1:]
        for sort in ("due", "-due")
    )
    assert first == second[::-1] != second
    assert "No due time matches" in words(browser.get(f"{nightly}/due-times?search=no-such"))
    assert '"every_s": 3600' in words(browser.get(f"{nightly}/definition"))
    assert "nightly" in words(browser.get("/schedules?search=NIGHT"))
    assert "No schedule matches" in words(browser.get("/schedules?search=weekly"))


def test_a_schedule_whose_crawler_left_the_catalogue_is_broken(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    harness.scheduler = FakeScheduler([replace(CRAWLERS[0], name="other")])
    with harness.client(harness.new_app()) as client:
        later = as_browser(client)
        for path in ("/schedules", nightly):
            page = words(later.get(path))
            assert "broken" in page
            assert "the catalogue no longer has the crawler plain, so it starts nothing" in page
        press(later, nightly, "pause")
        assert "Schedule nightly paused" in words(later.get(nightly))


def test_a_schedule_is_paused_with_a_reason_and_resumed(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    assert "It is paused." in words(press(browser, nightly, "pause", reason="a <migration>"))
    assert "a <migration>" in words(browser.get(nightly))
    assert "a <migration>" in words(browser.get("/schedules"))
    assert "It continues." in words(press(browser, nightly, "resume"))
    assert "It is deleted" in words(press(browser, nightly, "delete"))
    assert "There are no schedules yet" in words(browser.get("/schedules"))


def test_a_backfill_is_counted_before_it_begins(
    harness: Harness, browser: TestClient, nightly: str
) -> None:
    window = {"after": "2026-11-19T00:30:00Z", "until": "2026-11-19T03:30:00Z"}
    asked = press(browser, nightly, "backfill", **window)
    assert "3 due times are in this window" in words(asked)
    preview = "First Thursday 2026-11-19 01:00:00 +0000 Last Thursday 2026-11-19 03:00:00 +0000"
    assert preview in words(asked)
    row = harness.schedule()
    assert harness.store.schedules.list_firings(row.schedule_id) == []
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text.partition("<main")[2]))
    assert fields.pop("do") == "backfill"
    done = browser.post(nightly, data={**fields, "do": "backfill"})
    assert "3 due: 2026-11-19 01:00:00 UTC" in words(followed(browser, done))
    assert len(harness.store.schedules.list_firings(row.schedule_id)) == 3
    for wrong, sentence in (
        ({"until": ""}, "give both times"),
        ({"until": "2026-11-18T00:00"}, "give a time later than after"),
        ({"until": "2099-11-18T00:00"}, "in the future"),
        ({"until": "2026-02-31T00:00"}, "does not exist"),
        ({"until": "soon"}, "soon"),
    ):
        form = {"key": "0" * 32, "do": "backfill", **window, **wrong}
        kept = browser.post(nightly, data=form)
        assert (kept.status_code, sentence in kept.text) == (422, True), kept.text
        assert 'value="2026-11-19T00:30:00Z"' in kept.text


def test_a_webhook_is_made_tested_paused_and_deleted(harness: Harness, browser: TestClient) -> None:
    form = {
        "name": "portal",
        "url": "https://hooks.example.com/<x>",
        "secret": "env:CRAWL_HOOK",
        "events": "run.ended",
    }
    assert browser.post("/webhooks/new", data=form).headers["location"] == "/webhooks/portal"
    assert "https://hooks.example.com/<x>" in words(browser.get("/webhooks"))
    test = {"key": uuid.uuid4().hex, "do": "test"}
    first, again = (
        results(followed(browser, browser.post("/webhooks/portal", data=test))) for _ in range(2)
    )
    assert first == again != []
    assert "It is paused." in words(press(browser, "/webhooks/portal", "pause", reason="why"))
    assert "paused" in words(browser.get("/webhooks/portal"))
    assert "It continues." in words(press(browser, "/webhooks/portal", "skip"))
    row, seq = (
        harness.store.webhooks.follow_webhook("portal", "f"),
        harness.store.webhooks.test_webhook("portal", None).seq,
    )
    harness.store.webhooks.note_tries(
        row.webhook_id, "f", [DeliveryAttempt(seq, "it said <no>")], seq - 1, settled=False
    )
    failing = words(browser.get("/webhooks/portal"))
    assert f"does not accept event {seq}: it said <no>" in failing
    assert "Repair the receiver" in failing
    assert "It continues." in words(press(browser, "/webhooks/portal", "skip_one", seq=str(seq)))
    deliveries = "/webhooks/portal/deliveries"
    assert "skipped" in words(
        browser.get(f"{deliveries}?search=SKIPPED&status=skipped&sort=-event")
    )
    assert "No delivery matches" in words(browser.get(f"{deliveries}?search=no-such"))
    assert browser.get(f"{deliveries}?sort=size").status_code == 422
    assert press(browser, "/webhooks/portal", "skip_one", seq=str(seq)).status_code == 422, (
        "it does not fail any more"
    )
    assert "It is deleted" in words(press(browser, "/webhooks/portal", "delete"))
    assert browser.get("/webhooks/portal").status_code == 404


def test_a_manager_is_paused_capped_and_stopped(harness: Harness, browser: TestClient) -> None:
    assert (
        browser.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"}).status_code == 202
    )
    browser.post("/v1/managers/1/jobs", json={"jobs": [{"spider_args": {"page": "<7>"}}]})
    path, seen = "/managers/1", {"attempt": "1"}
    assert "page=<7>" in words(browser.get(path))
    assert "starts no more jobs" in words(press(browser, path, "pause", **seen))
    assert "The limit is 3." in words(press(browser, path, "limit", cap="3", **seen))
    assert "0 live of at most 3" in words(browser.get(path))
    assert "attempt 1 now" in words(press(browser, path, "stop", attempt="2"))
    assert harness.manager(1).stop is None
    assert "The stop is recorded." in words(press(browser, path, "stop", reason="enough", **seen))
    assert "enough" in words(browser.get(path))
    assert press(browser, path, "limit", cap="-1", **seen).status_code == 422


def told(answer: Any) -> list[tuple[str, str, str]]:
    """Return the result for each selected subject: its name, whether it was carried out, and the
    message.
    """
    found = [(name, "yes" if done else "no", text) for name, done, text in results(answer)]
    return sorted(found, key=lambda one: int("".join(re.findall(r"\d", one[0])) or 0))


def test_chosen_managers_are_paused_and_stopped_each_with_its_answer(
    harness: Harness, browser: TestClient
) -> None:
    for flow in "abc":
        assert (
            browser.post("/v1/managers", json={"crawler": "plain", "flow_id": flow}).status_code
            == 202
        )
    page = browser.get("/managers?sort=name").text
    assert re.findall(r'name="manager" value="([^"]*)"', page) == ["3.1", "2.1", "1.1"]
    paused = told(press(browser, "/managers", "pause", manager=["1.1", "2.7", "99.1"]))
    assert [one[:2] for one in paused] == [
        ("manager 1", "yes"),
        ("manager 2", "no"),
        ("manager 99", "no"),
    ]
    assert ("attempt 1 now" in paused[1][2], "99" in paused[2][2]) == (True, True)
    assert [harness.manager(n).paused for n in (1, 2, 3)] == [True, False, False]
    key = uuid.uuid4().hex
    for do, own, pauses in [
        ("pause", key, True),
        ("resume", uuid.uuid4().hex, False),
        ("pause", key, False),
    ]:
        assert [
            one[1] for one in told(press(browser, "/managers", do, manager=["2.1", "3.1"], key=own))
        ] == ["yes"] * 2
        assert [harness.manager(n).paused for n in (2, 3)] == [pauses] * 2, (
            "a form that is sent again does nothing"
        )
    asked = press(browser, "/managers", "force", manager=["1.1", "3.1"], typed="3")
    assert "Force stop 2 managers" in words(asked)
    assert harness.manager(3).stop is None
    forced = press(browser, "/managers", "force", manager=["1.1", "3.1"], typed="2", reason="<why>")
    assert told(forced) == [(f"manager {n}", "yes", "The forced stop is recorded.") for n in (1, 3)]
    assert "<h1>Managers</h1>" in forced.text, "the list stays"
    for wrong in (
        {"manager": []},
        {"manager": ["1"]},
        {"manager": ["x.1"]},
        {"manager": ["1.1"], "cap": "2"},
    ):
        assert press(browser, "/managers", "stop", **wrong).status_code == 422, wrong
    assert press(browser, "/managers", "limit", manager=["1.1"]).status_code == 422


def test_chosen_graphs_are_stopped_and_retried_whatever_they_are_called(
    harness: Harness, browser: TestClient
) -> None:
    step, names = (
        {"path": "a", "kind": "crawl", "job": {"crawler": "plain"}},
        ["v1.2", 'odd "x" & <b>'],
    )
    for name in names:
        assert browser.post("/v1/graphs", json={"id": name, "steps": [step]}).status_code == 202
    page = browser.get("/graphs").text
    chosen = [html.unescape(one) for one in re.findall(r'name="graph" value="([^"]*)"', page)]
    assert chosen == [f"{name}.1" for name in reversed(names)]
    assert len(set(re.findall(r'<tr id="([^"]*)"', page))) == 2
    assert press(browser, "/graphs", "stop", graph=chosen, reason="x" * 256).status_code == 422
    assert [one[1] for one in told(press(browser, "/graphs", "stop", graph=chosen))] == [
        "yes",
        "yes",
    ]
    assert {one["stop"]["force"] for one in browser.get("/v1/graphs").json()["graphs"]} == {False}
    assert press(browser, "/graphs", "fresh", graph=chosen).status_code == 422


@pytest.mark.parametrize("do", ["stop", "cancel"])
def test_a_reason_that_is_too_long_for_a_graph_is_refused(browser: TestClient, do: str) -> None:
    browser.post(
        "/v1/graphs",
        json={"id": "g", "steps": [{"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}]},
    )
    for length, status in ((255, 200), (256, 422), (2001, 422)):
        form = {"key": f"{length:032x}", "attempt": "1", "do": do, "reason": "x" * length}
        answer = followed(browser, browser.post("/graphs/g", data=form))
        assert (answer.status_code, "at most 255" in answer.text) == (status, status == 422), (
            answer.text
        )
    assert 'name="reason" maxlength="255"' in browser.get("/graphs/g").text


def test_an_audit_is_made_once_for_each_form(harness: Harness, browser: TestClient) -> None:
    harness.workflows.report = AuditReport("audit-1", harness.clock(), harness.clock(), repair=True)
    form = {"key": uuid.uuid4().hex, "repair": "true"}
    for _ in range(2):
        assert "Found 0, repaired 0, left 0." in words(browser.post("/audit", data=form))
    assert harness.workflows.audits == [True]
    harness.workflows.down = True
    failed = browser.post("/audit", data={"key": "1" * 32})
    assert failed.status_code == 503
    harness.workflows.down = False
    assert browser.post("/audit", data={"key": "1" * 32}).status_code == 200


@pytest.mark.parametrize(("task", "shown"), [(7, "the task with id 7"), (None, "run 3")])
def test_an_audit_shows_findings_about_tasks_and_about_others(
    harness: Harness, browser: TestClient, task: int | None, shown: str
) -> None:
    finding = AuditFinding(
        "still_alive/7", FindingKind.STILL_ALIVE, "run 3 executes", run_id=3, task_id=task
    )
    harness.store.findings.note_findings([finding])
    report = AuditReport("audit-1", harness.clock(), harness.clock(), repair=True)
    report.looked["tasks"] = 12
    report.troubles.append("Temporal could not be compared")
    harness.store.findings.record_audit(report)
    page = words(browser.get("/audit"))
    assert "12 tasks checked; 0 findings left." in page
    assert "Temporal could not be compared" in page
    assert shown in page
    assert shown in browser.get("/audit?format=csv").text


def test_a_deletion_leads_to_the_list_from_every_tab(browser: TestClient, nightly: str) -> None:
    form = {"key": uuid.uuid4().hex, "do": "delete"}
    tab = {"referer": f"http://testserver{nightly}/due-times"}
    answer = browser.post(nightly, data=form, headers=tab)
    assert answer.headers["location"] == "/schedules"


def test_corrections_are_those_of_the_week_unless_asked(browser: TestClient) -> None:
    assert "No corrections since then." in words(browser.get("/corrections"))
    assert browser.get("/corrections?kind=nonsense").status_code == 422
    assert browser.get("/corrections?since=2026-01-01T00:00:00Z&kind=late").status_code == 200


def test_a_form_that_is_sent_again_with_other_values_asks_for_another_action(
    harness: Harness, browser: TestClient
) -> None:
    """A person goes back to a page, which keeps its key, and requests something else."""
    browser.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    key = uuid.uuid4().hex

    def limited(cap: str) -> str:
        return words(press(browser, "/managers/1", "limit", key=key, attempt="1", cap=cap))

    for cap in ("3", "5"):
        assert f"The limit is {cap}." in limited(cap)
    again = limited("3")
    assert "The limit is 3." in again, "an answer from before"
    assert harness.manager(1).cap == 5, "the same form does nothing twice"
