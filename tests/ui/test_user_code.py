"""Journeys of people who plan crawls: schedules, managers with a limit, graphs of steps."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Route, expect

from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from tests.e2e.harness import Harness, until
from tests.ui.browser import Visitor
from tests.ui.conftest import Visits
from tests.ui.people import now


def test_a_schedule_is_made_fired_paused_and_backfilled(harness: Harness, visitor: Visitor) -> None:
    page = visitor.open("/schedules")
    page.get_by_role("link", name="New schedule").first.click()
    page.get_by_label("Name", exact=True).fill("prices")
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_label("Crawler", exact=True).press("Tab")
    page.get_by_label("max_pages").fill("1")
    page.get_by_label("Cron expression").fill("61 2 * * *")
    expect(page.get_by_label("Manager class")).to_be_hidden()
    with visitor.expecting("422"):
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("cron")
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("max_pages")).to_have_value("1")
    visitor.poll(page)
    page.get_by_label("Cron expression").fill("30 2 * * *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("prices")
    expect(page.get_by_role("main")).to_contain_text("02:30:00 +0100")

    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 due:")
    page.goto("/schedules/prices/due-times")
    until(
        lambda: harness.gateway.get("/v1/schedules/prices/firings")["firings"],
        "the line of what was pressed",
    )
    page.reload()
    table = page.get_by_role("region", name="Due times")
    expect(table).to_contain_text("started")

    page.get_by_label("Reason", exact=True).fill("the shop moves")
    page.get_by_role("button", name="Pause").click()
    page.goto("/schedules")
    line = page.get_by_role("row").filter(has_text="prices")
    expect(line).to_contain_text("the shop moves")

    line.get_by_role("link", name="prices").click()
    page.get_by_role("navigation", name="Tabs").get_by_role("link", name="Backfill").click()
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    page.get_by_label("Due after").fill(f"{today - timedelta(days=3):%FT%T}")
    page.get_by_label("up to").fill(f"{today - timedelta(days=1):%FT%T}")
    page.get_by_role("button", name="Backfill").click()
    page.get_by_role("button", name="Backfill 2").click()
    until(
        lambda: len(harness.gateway.get("/v1/schedules/prices/firings")["firings"]) == 3,
        "the lines of what was backfilled",
    )
    page.goto("/schedules/prices/due-times")
    expect(table.get_by_role("row")).to_have_count(4)
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("main")).not_to_contain_text("the shop moves")


@pytest.mark.slow
def test_a_due_time_that_was_missed_is_seen_and_backfilled(
    harness: Harness, visitor: Visitor
) -> None:
    due = datetime.fromtimestamp((datetime.now(UTC).timestamp() + 12) // 10 * 10, UTC)
    times = {
        "every_s": 10,
        "catch_up_s": 10,
        "start_at": due.isoformat(),
        "end_at": due.isoformat(),
    }
    harness.freeze("worker")
    try:
        harness.gateway.put(
            "/v1/schedules/tides",
            {"run": {"crawler": "plain", "args": {"max_pages": "1"}}, **times},
        )
        until(
            lambda: datetime.now(UTC) > due + timedelta(seconds=11),
            "a due time that nobody can serve any more",
        )
    finally:
        harness.thaw("worker")
    page = visitor.open("/schedules")
    expect(page.get_by_role("row").filter(has_text="tides")).to_contain_text("missed")
    page.goto("/schedules/tides/due-times")
    line = page.get_by_role("region", name="Due times").get_by_role("row").last
    expect(line).to_contain_text("missed")
    page.get_by_role("navigation", name="Tabs").get_by_role("link", name="Backfill").click()
    page.get_by_label("Due after").fill(f"{due - timedelta(seconds=1):%FT%T}")
    page.get_by_label("up to").fill(f"{due:%FT%T}")
    page.get_by_role("button", name="Backfill …").click()
    page.get_by_role("button", name="Backfill 1").click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")
    page.goto("/schedules/tides/due-times")
    expect(line).to_contain_text("it was missed")
    line.get_by_role("link", name=re.compile(r"^run \d+$")).click()
    expect(now(page)).to_contain_text("done")


def test_a_manager_begins_in_its_form_gets_a_cap_and_is_stopped_in_the_list(
    harness: Harness, visitor: Visitor
) -> None:
    page = visitor.open("/managers")
    page.get_by_role("link", name="Start a manager").first.click()
    page.get_by_label("Manager class").select_option("examples.managers:Walks")
    page.get_by_role("button", name="Show arguments").click()
    page.get_by_label("Flow id").fill(uuid.uuid4().hex)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile(r"/managers/\d+$"))
    manager = int(page.url.rpartition("/")[2])
    page.get_by_label("Jobs at once").fill("1")
    page.get_by_role("button", name="Set").click()
    until(lambda: harness.gateway.get(f"/v1/managers/{manager}")["cap"] == 1, "the new cap")
    page.goto(f"/managers/{manager}")
    expect(page.get_by_label("Jobs at once")).to_have_value("1")
    page.goto("/managers?status=PROCESSING&status=INITIALIZING&name=walks")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    for key in "jx":
        page.keyboard.press(key)
    expect(page.get_by_text("1 selected")).to_be_visible()
    expect(page.get_by_role("checkbox", name=f"Manager {manager}", exact=True)).to_be_checked()
    visitor.poll(page)
    page.get_by_label("Reason").fill("enough")
    page.get_by_role("button", name="Stop", exact=True).click()
    result = page.get_by_role("status", name="Result")
    expect(result).to_contain_text("1 of 1 carried out")
    result.get_by_role("listitem").get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text("enough")


def test_jobs_of_a_manager_are_typed_in_rows(visitor: Visitor) -> None:
    page = visitor.open(f"/start/manager?plan={BUILT_IN}")
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_label("Crawler", exact=True).press("Tab")
    first = page.get_by_role("group", name="Job 1", exact=True)
    first.get_by_label("max_pages").fill("1")
    page.get_by_label("Tags").fill("rows")
    page.get_by_role("button", name="Add a job").click()
    second = page.get_by_role("group", name="Job 2", exact=True)
    second.get_by_label("max_pages").fill("2")
    expect(first.get_by_label("max_pages")).to_have_value("1")
    page.get_by_label("--retries").fill("many")
    with visitor.expecting("422"):
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_label("--retries")).to_be_focused()
    visitor.poll(page)
    page.get_by_label("--retries").fill("")
    page.get_by_role("button", name="Add a job").click()
    expect(page.get_by_role("group", name="Job 3")).to_be_visible()
    page.get_by_role("button", name="Remove job 2").click()
    expect(page.get_by_role("group", name="Job 3")).to_have_count(0)
    expect(second.get_by_label("max_pages")).to_have_value("")
    expect(page.get_by_label("Tags")).to_have_value("rows")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile(r"/managers/\d+$"))


def test_a_graph_begins_in_its_form_and_its_failed_step_is_retried(
    harness: Harness, visitor: Visitor
) -> None:
    page = visitor.open("/graphs")
    page.get_by_role("link", name="Start a graph").first.click()
    page.get_by_label("Function that builds the graph").select_option("examples.graphs:nightly")
    page.get_by_role("button", name="Show arguments").click()
    page.get_by_label("mood").fill("shaky")
    page.get_by_label("Most steps at once").fill("many")
    with visitor.expecting("422"):
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_label("Most steps at once")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Most steps at once").fill("2")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("#drawing svg")).to_be_visible()
    name = page.url.rpartition("/")[2]
    failing = page.get_by_role("region", name="Failing steps", exact=True)
    expect(failing).to_contain_text("publish")
    until(lambda: harness.gateway.get(f"/v1/graphs/{name}")["state"] == "discarded", "its end")
    page.get_by_role("navigation", name="Tabs").get_by_role("link", name="Steps").click()
    step = page.get_by_role("region", name="Steps").get_by_role("row").filter(has_text="publish")
    expect(step).to_contain_text("failed")
    step.get_by_role("checkbox").check()
    acts = page.get_by_role("group", name="Actions on the selected steps")
    acts.get_by_role("button", name="Retry steps").click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 step changed")
    until(lambda: harness.gateway.get(f"/v1/graphs/{name}")["state"] == "completed", "its good end")
    expect(page.get_by_role("heading", level=1)).to_contain_text("attempt 2")
    expect(step).to_contain_text("completed")


def test_a_large_graph_is_folded_searched_and_keeps_what_one_looks_at(
    harness: Harness, visitor: Visitor, visits: Visits
) -> None:
    later = {"kind": "crawl", "job": {"crawler": "services"}, "not_before": "2099-01-01T00:00:00Z"}
    pages = [{"path": f"page_{n}", **later, "deps": ["list"]} for n in range(260)]
    last = {"path": "sum", **later, "deps": [one["path"] for one in pages]}
    body = {"id": f"wide-{uuid.uuid4().hex}", "steps": [{"path": "list", **later}, *pages, last]}
    own = {"Origin": visitor.origin}
    started = visitor.context.request.post("/v1/graphs", data=body, headers=own)
    assert started.ok, started.text()
    page = visitor.open(f"/graphs/{body['id']}")
    drawn, here, counted = (
        page.locator(f"#drawing {one}") for one in (".graph a", ".here", ".counted")
    )
    fan = drawn.filter(has_text="page_0 … page_259")
    expect(drawn).to_have_count(3)
    expect(fan).to_contain_text("260 steps, waiting")
    expect(page.get_by_role("button", name="Next failed (0)")).to_be_disabled()

    field = page.get_by_label("Find a step")
    field.fill("PAGE_25")
    expect(counted).to_have_text("11 steps")
    field.press("Enter")
    expect(counted).to_have_text("1 of 11")
    field.press("Enter")
    expect(counted).to_have_text("2 of 11")
    expect(here).to_contain_text("page_250")
    assert page.url.endswith("#step=page_250"), "whoever gets this address sees the same step"
    here.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    moved = page.locator("#drawing .graph > g")
    expect(moved).to_have_attribute("transform", re.compile(r"scale\(1\.25\)"))
    expect(page.get_by_role("img", name="Overview")).to_be_visible()
    seen = moved.get_attribute("transform")
    stopped = visitor.context.request.post(f"/v1/graphs/{body['id']}/stop", data={}, headers=own)
    assert stopped.ok, stopped.text()
    expect(here).to_contain_text("cancelled")
    assert moved.get_attribute("transform") == seen, "news move nothing"
    expect(here).to_be_focused()
    page.get_by_role("button", name="Fold all", exact=True).click()
    expect(drawn).to_have_count(3)
    expect(fan).to_contain_text("260 steps, cancelled")
    page.reload()
    expect(here).to_contain_text("page_250")

    def failing(route: Route) -> None:
        response = route.fetch()
        document = response.json()
        [node] = [one for one in document["nodes"] if one["path"] == "page_77"]
        node["state"] = "discarded"
        route.fulfill(response=response, json=document)

    page.route("**/picture?expand=*", failing)
    page.goto(f"/graphs/{body['id']}/runs")
    page.goto(f"/graphs/{body['id']}")
    expect(here).to_contain_text("page_77")
    expect(page.get_by_role("button", name="Next failed (1)")).to_be_enabled()
    assert "#" not in page.url, "nobody chose this step"
    here.click()
    expect(page).to_have_url(re.compile(r"/steps\?path=page_77$"))
    expect(page.get_by_role("row", name="page_77")).to_contain_text("cancelled")

    phone = visits(visitor.origin, viewport={"width": 390, "height": 844}, has_touch=True).open(
        f"/graphs/{body['id']}"
    )
    folded = phone.locator("#drawing .folded")
    phone.get_by_role("button", name="Fit").tap()
    folded.tap()
    expect(phone.locator("#drawing .frame")).to_contain_text("page_0 … page_259")
