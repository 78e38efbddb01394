"""The calendar of a schedule: past and future due times, each on its own day, and nothing untrue."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import text

from crawler_lifecycle.features.schedules.domain.definition import TargetKind
from crawler_lifecycle.features.schedules.ports import TargetRef
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_things import press, words

RUN = {"run": {"crawler": "plain", "args": {"page": "7"}}}
AT = "/schedules/nightly"


def put(browser: TestClient, target: dict[str, Any] = RUN, **times: Any) -> None:
    answer = browser.put("/v1/schedules/nightly", json={**target, **times})
    assert answer.status_code == 200, answer.text


def days(browser: TestClient) -> dict[str, str]:
    """Return the text of each day, by its date."""
    table = browser.get(AT).text.partition('<table class="calendar">')[2].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
    texts = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in rows]
    return {re.findall(r"\d{4}-\d\d-\d\d", one)[0]: one for one in texts}


def test_what_was_due_leads_to_what_it_began(harness: Harness, browser: TestClient) -> None:
    harness.clock.now = datetime(2026, 11, 17, 12, tzinfo=UTC)
    put(browser, cron="30 2 * * *")
    assert "nothing has been due yet" in words(browser.get(AT))
    harness.clock.now = datetime(2026, 11, 19, 2, 30, tzinfo=UTC)
    run_id = browser.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
    begun = harness.store.schedules.decide_due("nightly", harness.clock())
    assert begun is not None
    harness.store.schedules.due_begun(begun.due_id, TargetRef(TargetKind.RUN, run_id))
    assert "◆ 02:30 initializing" in days(browser)["2026-11-19"]
    harness.claim(run_id)
    harness.end(run_id)
    harness.clock.now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    found = days(browser)
    assert (next(iter(found)), list(found)[-1]) == ("2026-11-17", "2026-12-04"), (
        "from its first day on"
    )
    assert "◌ 02:30 not on record yet" in found["2026-11-20"]
    harness.store.schedules.note_due(harness.schedule().schedule_id, harness.clock())
    found, page = days(browser), browser.get(AT)
    assert "✕ 02:30 missed" in found["2026-11-18"]
    assert f'<a href="/runs/{run_id}" class="mark failed"' in page.text
    assert "▲ 02:30 failed" in found["2026-11-19"]
    assert "today" in found["2026-11-20"]
    assert "○ 02:30 due" in found["2026-11-21"]
    assert (
        "Begins run plain With args: page: 7 Due 30 2 * * * UTC If one is still executing skip the new target"
        in words(page)
    )
    assert '<a href="/crawlers/plain">run plain</a>' in page.text
    assert (
        "missed: Temporal did not fire at this time"
        in words(page).partition("Last failure")[2][:90]
    )


def test_nothing_comes_while_it_is_paused_or_when_it_is_over(
    harness: Harness, browser: TestClient
) -> None:
    put(browser, cron="30 2 * * *", end_at="2026-11-22T12:00:00Z")
    assert list(days(browser)) == ["2026-11-20", "2026-11-21", "2026-11-22"]
    press(browser, AT, "pause", reason="why")
    page = words(browser.get(AT))
    assert "While it is paused, its due times are recorded, but nothing starts." in page
    assert list(days(browser)) == ["2026-11-20"]
    assert "in 14 h" not in words(browser.get("/schedules"))
    press(browser, AT, "resume")
    assert "in 14 h" in words(browser.get("/schedules"))
    harness.clock.forward(5 * 86400)
    assert "There are no more due times" in words(browser.get(AT))


def test_a_day_on_which_the_clock_is_set_has_the_due_times_that_it_has(
    harness: Harness, browser: TestClient
) -> None:
    harness.clock.now = datetime(2026, 10, 20, 12, tzinfo=UTC)
    put(browser, cron="30 2 * * *", time_zone="Europe/Berlin", excluded=["2026-10-24"])
    found = days(browser)
    assert found["2026-10-25"].count("02:30 due") == 2
    assert "the clock goes back by 60 min" in found["2026-10-25"]
    assert ("excluded" in found["2026-10-24"], "due" in found["2026-10-24"]) == (True, False)
    harness.clock.now = datetime(2027, 3, 20, 12, tzinfo=UTC)
    found = days(browser)
    assert "the clock goes forward by 60 min" in found["2027-03-28"]
    assert "due" not in found["2027-03-28"]
    assert "○ 02:30 due" in found["2027-03-29"]


def test_many_due_times_of_a_day_are_counted(harness: Harness, browser: TestClient) -> None:
    put(browser, every_s=60)
    harness.clock.now = datetime(2026, 11, 22, 0, 10, tzinfo=UTC)
    while harness.store.schedules.note_due(harness.schedule().schedule_id, harness.clock()).more:
        pass
    found = days(browser)
    assert re.search("719 due.*✕ 719 missed", found["2026-11-20"]), found["2026-11-20"]
    assert re.search("1 440 due.*✕ 1 440 missed", found["2026-11-21"])
    assert re.search("1 440 due.*○ 1 429 due.*✕ 11 missed", found["2026-11-22"])
    assert re.search("^[^:]* 1 440 due.*○ 1 440 due", found["2026-11-23"])
    page = browser.get(AT).text
    [address] = re.findall(
        r'<a href="([^"]+)">719\s+due', " ".join(page.split()).replace("\u202f", " ")
    )
    listed = browser.get(address.replace("&amp;", "&"))
    assert "2026-11-20 23:59:00" in listed.text
    put(browser, every_s=10)
    assert "more than 1 440 due" in days(browser)["2026-11-23"]


def test_a_definition_that_somebody_broke_is_told_and_breaks_nothing_else(
    harness: Harness, browser: TestClient
) -> None:
    put(
        browser,
        {
            "graph": {
                "name": "all",
                "steps": [{"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}],
            }
        },
        every_s=60,
    )
    assert "Begins graph all With 1 step: a Due every 60 s" in words(browser.get(AT))
    browser.put("/v1/schedules/other", json={**RUN, "every_s": 60})
    for odd in (
        '"cron": "61 * * * *"',
        '"cron": 7',
        '"every_s": 60, "time_zone": "Moon/Base"',
        '"every_s": 60, "start_at": "x"',
        '"every_s": 60, "start_at": 7',
    ):
        with harness.store.database.writing() as conn:
            broken = {"odd": f'{{"run": {{"crawler": "plain"}}, {odd}}}'}
            conn.execute(
                text("UPDATE schedule SET definition = :odd WHERE name = 'nightly'"), broken
            )
        page = words(browser.get(AT))
        assert "its definition cannot be read, so it starts nothing" in page, odd
        assert "Nothing can start" in page
        page = words(browser.get("/schedules"))
        assert "its definition cannot be read" in page
        assert "in 60 s" in page, "the other one"
