"""Journeys of people who read: what a crawler prints, what it found, and what was recorded wrongly."""

from __future__ import annotations

import os
import re
import signal

from playwright.sync_api import expect

from examples.story_checks import task_processes
from tests.e2e.harness import Harness, until
from tests.ui.browser import Visitor
from tests.ui.people import now, start


def test_a_log_is_followed_paused_and_searched(harness: Harness, visitor: Visitor) -> None:
    run_id = start(harness, args={"max_pages": "100000", "delay": "0.3"})
    page = visitor.open(f"/runs/{run_id}")
    page.get_by_role("link", name="Log", exact=True).click()
    log, state = page.get_by_role("log"), page.get_by_role("main").get_by_role("status")
    expect(state).to_have_text("New lines are shown as they arrive.")
    expect(log).to_contain_text("200 http://")
    line = log.get_by_role("link", name="Line 1", exact=True)
    expect(line).to_be_visible()
    visitor.poll(page)
    line.click()
    expect(log.locator("#found a")).to_have_text("1")
    page.get_by_role("link", name="End of the log").click()
    expect(log).to_contain_text("200 http://")
    seen = len(log.inner_text())
    page.wait_for_function(
        "seen => document.getElementById('log').innerText.length > seen", arg=seen
    )
    page.get_by_label("Search", exact=True).fill("200 HTTP://")
    page.get_by_role("button", name="Search").click()
    expect(state).to_contain_text("in the part of the log that can be read here")
    expect(log.get_by_role("link").first).to_be_visible()
    assert "q=200" in page.url, "whoever gets this address sees the same lines"
    visitor.poll(page)
    log.get_by_role("link").first.click()
    expect(log.locator("#found")).to_contain_text("200 http://")
    expect(log).to_contain_text("200 http://")
    visitor.poll(page)
    page.get_by_role("link", name="End of the log").click()
    expect(log).to_contain_text("200 http://")
    page.get_by_role("button", name="Pause").click()
    expect(state).to_contain_text("Paused")
    visitor.poll(page)
    page.get_by_role("button", name="Pause").click()
    harness.gateway.stop(run_id, reason="the log is read")
    expect(state).to_contain_text("This is the end of the log.")
    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download the whole log").click()
    assert "200 http://" in fetched.value.path().read_text()


def test_items_are_looked_through_while_they_come_and_in_the_archive(
    harness: Harness, visitor: Visitor
) -> None:
    run_id = start(harness, args={"max_pages": "4", "delay": "0"})
    until(lambda: harness.status(run_id) == "COMPLETED", "its end")
    page = visitor.open(f"/runs/{run_id}")
    page.get_by_role("link", name=re.compile("iles")).first.click()
    files = page.get_by_role("region", name="Files")
    expect(files).to_contain_text("items.jsonl")
    visitor.poll(page)
    files.get_by_role("row").filter(has_text="items.jsonl").get_by_role(
        "link", name="items", exact=True
    ).click()
    expect(page.get_by_role("main")).to_contain_text("4 items")
    expect(page.get_by_role("region", name="Items").get_by_role("row")).to_have_count(5)
    page.goto("/")
    expect(page.get_by_role("row", name=re.compile("^plain"))).to_contain_text("healthy")


def test_a_crawler_that_was_killed_leaves_a_correction_to_be_read(
    harness: Harness, visitor: Visitor
) -> None:
    run_id = start(harness)
    until(lambda: harness.tasks(run_id).get("RUNNING"), "a crawler that runs")
    page = visitor.open(f"/runs/{run_id}")
    os.killpg(task_processes(harness.places, run_id)["0/1"][2], signal.SIGKILL)
    expect(now(page)).to_contain_text("failed")
    page.get_by_role("link", name=re.compile("^Timeline")).click()
    table = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="True"))
    expect(table).to_contain_text("killed")
    table.get_by_text("show", exact=True).first.click()
    expect(table.locator("pre").first).to_be_visible()
