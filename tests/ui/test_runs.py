"""Journeys of people who run crawls: start, watch, stop, force, resume, run again, many at once."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.e2e.harness import Harness, until
from tests.ui.browser import Visitor
from tests.ui.conftest import Visits
from tests.ui.people import now, number, row, start


def test_a_run_is_started_from_its_form_and_watched_to_its_end(
    harness: Harness, visitor: Visitor
) -> None:
    page = visitor.open("/runs")
    page.get_by_role("link", name="Start a run").click()
    page.get_by_label("Crawler", exact=True).fill("plian")
    page.get_by_label("Tags").fill("kept")
    expect(page.get_by_text("did you mean plain?").first).to_be_visible()
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_label("Crawler", exact=True).press("Tab")
    page.get_by_label("max_pages").fill("5")
    page.get_by_text("Limits, settings and more").click()
    page.get_by_label("Memory").fill("much")
    page.get_by_label("Priority").fill("9")
    with visitor.expecting("422"):
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("2 fields are wrong")
    expect(page.get_by_label("Memory")).to_be_focused()
    visitor.poll(page)
    expect(page.get_by_label("Tags")).to_have_value("kept")
    page.get_by_label("Memory").fill("")
    page.get_by_label("Priority").fill("2")
    page.get_by_role("button", name="Start", exact=True).click()
    run_id = number(page)
    list_of_runs = visitor.open("/runs")
    expect(row(list_of_runs, run_id)).to_contain_text("done")
    visitor.show(page)
    expect(now(page)).to_contain_text("done")
    expect(now(page)).to_contain_text("finished")
    assert harness.status(run_id) == "COMPLETED"


def test_the_next_times_follow_the_expression_while_one_types(
    harness: Harness, visitor: Visitor
) -> None:
    page = visitor.open("/schedules/new")
    following = page.locator("#next")
    page.get_by_label("Crawler", exact=True).fill("plain")
    page.get_by_label("Cron expression").press_sequentially("30 2 29 2 *")
    expect(following).to_contain_text("02-29 02:30:00 +0000")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    expect(following).to_contain_text("Next times in Europe/Berlin")
    expect(page.get_by_label("max_pages")).to_be_visible()
    page.get_by_label("Cron expression").fill("* * * * * *")
    expect(following).to_contain_text("five")
    visitor.poll(page)


def test_a_stop_names_who_and_why_until_the_run_has_ended(
    harness: Harness, visitor: Visitor
) -> None:
    run_id = start(harness)
    page = visitor.open(f"/runs/{run_id}")
    expect(now(page)).to_contain_text("running")
    page.get_by_label("Reason").fill("the shop <b>closes</b>")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")
    expect(page).to_have_url(re.compile(rf"/runs/{run_id}$"))
    expect(now(page)).to_contain_text("the shop <b>closes</b>")
    expect(now(page)).to_contain_text("stopped")
    expect(now(page)).to_contain_text("cancelled")
    page.get_by_role("link", name=re.compile("^Timeline")).click()
    expect(page.get_by_role("table").filter(has_text="Received")).to_contain_text(
        "the shop <b>closes</b>"
    )
    assert harness.status(run_id) == "FAILED"


def test_a_force_asks_for_the_number_first(harness: Harness, visitor: Visitor) -> None:
    run_id = start(harness)
    until(lambda: harness.tasks(run_id).get("RUNNING"), "a crawler that runs")
    page = visitor.open(f"/runs/{run_id}")
    page.get_by_role("button", name="Force stop").click()
    typed = page.get_by_label("Number of the run")
    typed.fill(str(run_id + 1))
    page.get_by_role("button", name="Force stop").click()
    expect(typed).to_have_attribute("aria-invalid", "true")
    visitor.poll(page)
    assert harness.query("SELECT * FROM cancellation_log WHERE run_id = ?", run_id) == []
    typed.fill(str(run_id))
    page.get_by_role("button", name="Force stop").click()
    expect(now(page)).to_contain_text("Forced stop")
    expect(now(page)).to_contain_text("stopped")


def test_what_failed_is_resumed_once_however_often_the_form_is_sent(
    harness: Harness, visits: Visits
) -> None:
    run_id = start(harness, "broken")
    until(lambda: harness.status(run_id) == "FAILED", "the end of the first attempt")
    # Without scripts, nothing updates the form in the other window.
    visitor = visits(str(harness.stack.addresses["gateway"]), java_script_enabled=False)
    page, other = (visitor.open(f"/runs/{run_id}") for _ in range(2))
    other.get_by_role("button", name="Resume").click()
    expect(other.get_by_role("status", name="Result")).to_contain_text("1 of 1 carried out")
    page.get_by_role("button", name="Resume").click()
    told = page.get_by_role("status", name="Result")
    expect(told).to_contain_text("0 of 1 carried out")
    expect(told).to_contain_text("the form showed attempt 1")
    expect(page.get_by_role("heading", level=1)).to_contain_text("attempt 2")


def test_a_selection_is_stopped_with_an_answer_for_each(harness: Harness, visitor: Visitor) -> None:
    chosen, other = [start(harness), start(harness)], start(harness)
    page = visitor.open("/runs?crawler=plain&status=PROCESSING&status=INITIALIZING")
    for run_id in chosen:
        page.get_by_role("checkbox", name=f"Run {run_id}", exact=True).check()
    page.get_by_label("Reason").fill("too many")
    page.get_by_role("button", name="Stop", exact=True).click()
    result = page.get_by_role("status", name="Result")
    expect(result).to_contain_text("Stop: 2 of 2 carried out")
    for run_id in chosen:
        expect(result).to_contain_text(f"run {run_id}: The stop is recorded.")
    expect(page).to_have_url(re.compile(r"/runs\?crawler=plain&"))
    visitor.poll(page)
    result.get_by_role("link", name="Close").click()
    expect(result).to_have_count(0)
    page.goto("/runs")
    for run_id in chosen:
        expect(row(page, run_id)).to_contain_text("stopped")
    expect(row(page, other)).to_contain_text("running")
    page.get_by_role("link", name="Select all that match").click()
    boxes = page.get_by_role("checkbox", name=re.compile(r"^Run \d+$"), checked=False)
    expect(boxes).to_have_count(0)
    harness.gateway.stop(other, reason="while it is chosen")
    expect(row(page, other)).to_contain_text("stopped")
    expect(boxes).to_have_count(0)


def test_keys_find_choose_and_open_a_run(harness: Harness, visitor: Visitor) -> None:
    runs = [
        start(harness, args={"max_pages": "1", "delay": "0"}, tags=[tag])
        for tag in ("by xQz", "by mouse")
    ]
    until(lambda: all(harness.status(one) == "COMPLETED" for one in runs), "the end of both")
    page = visitor.open("/runs")
    press = page.keyboard.press
    press("f")
    page.keyboard.type("xqZ")
    expect(row(page, runs[1])).to_have_count(0)
    expect(row(page, runs[0])).to_be_visible()
    expect(page.get_by_role("main").get_by_role("searchbox")).to_have_value("xqZ")
    expect(page).to_have_url(re.compile(r"/runs\?search=xqZ$"))
    expect(page.get_by_text("1 run", exact=True)).to_be_visible()
    press("j")
    expect(page.get_by_role("main").get_by_role("searchbox")).to_have_value("xqZj")
    press("Backspace")
    expect(row(page, runs[0])).to_be_visible()
    press("Escape")
    press("j")
    press("x")
    expect(page.get_by_text("1 selected")).to_be_visible()
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    visitor.poll(page)
    press("Escape")
    press("v")
    page.get_by_label("Name").fill("<b>mine")
    press("Enter")
    expect(page.get_by_role("link", name="<b>mine")).to_have_attribute("href", "/runs?search=xqZ")
    press("Escape")
    page.get_by_role("link", name=str(runs[0]), exact=True).press("Enter")
    expect(page).to_have_url(re.compile(rf"/runs/{runs[0]}$"))
    page.go_back()
    expect(page.get_by_role("main").get_by_role("searchbox")).to_have_value("xqZ")
    expect(row(page, runs[0])).to_be_visible()
    expect(row(page, runs[1])).to_have_count(0)
    page.go_forward()
    expect(now(page)).to_contain_text("done")


def test_on_a_phone_the_first_run_is_in_the_first_screen(harness: Harness, visits: Visits) -> None:
    runs = [start(harness, "broken", tags=["t" * 200, "\u202eRTL", "\U0001f577"]), start(harness)]
    until(lambda: harness.status(runs[0]) == "FAILED", "its end")
    visitor = visits(
        str(harness.stack.addresses["gateway"]), viewport={"width": 390, "height": 844}
    )
    page = visitor.open("/runs")
    expect(page.get_by_role("link", name="Webhooks")).to_be_hidden()
    page.get_by_text("Menu").click()
    expect(page.get_by_role("link", name="Webhooks")).to_be_visible()
    page.get_by_text("Menu").click()
    for run_id in runs:
        expect(row(page, run_id)).to_be_in_viewport(ratio=1)
        status = row(page, run_id).locator(".status")
        expect(status).to_be_in_viewport(ratio=1)
        assert status.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth"), "it is not cut"
    assert row(page, runs[0]).bounding_box()["height"] < 60, "two lines"  # type: ignore[index]


def test_eight_tabs_move_at_the_same_time(harness: Harness, visitor: Visitor) -> None:
    run_id = start(harness)
    tabs = [visitor.open(f"/runs/{run_id}") for _ in range(8)]
    harness.gateway.stop(run_id, reason="for all to see")
    for tab in tabs:
        visitor.show(tab)
        expect(now(tab)).to_contain_text("stopped")


def test_a_tab_that_was_opened_behind_another_one_holds_no_stream(
    harness: Harness, visitor: Visitor
) -> None:
    """A browser has six connections to us for all its tabs: a seventh page would never load."""
    run_id = start(harness)
    for path in ["", *["/log"] * 7]:
        tab = visitor.context.new_page()
        tab.add_init_script(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
        )
        tab.goto(f"/runs/{run_id}{path}")
    visitor.show(tab)
    expect(tab.get_by_text("New lines are shown as they arrive.")).to_be_visible()
