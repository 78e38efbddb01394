"""Buttons and forms: carried out by the commands of the API, once, with a result for each run."""

from __future__ import annotations

import html
import json
import re
import uuid
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import SchedulerUnavailable, StoreUnavailable
from crawler_lifecycle.gateway.ui.parts.forms import USED
from crawler_lifecycle.gateway.ui.parts.lists import SELECTED_MAX
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, go_back, note_of
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import followed, results


def press(browser: TestClient, do: str, *runs: str, key: str | None = None, **more: str) -> Any:
    data = {"do": do, "run": list(runs), "key": key or uuid.uuid4().hex, **more}
    return followed(browser, browser.post("/runs", data=data))


def told(answer: Any) -> dict[int, tuple[str, str]]:
    """Return the result for each run: whether it was carried out, and the message."""
    found = results(answer)
    return {
        int(name.removeprefix("run ")): ("yes" if done else "no", text)
        for name, done, text in found
    }


def start(browser: TestClient, **more: Any) -> int:
    return int(browser.post("/v1/runs", json={"crawler": "plain", **more}).json()["run_id"])


def key_of(page: Any) -> str:
    return str(re.findall(r'name="key" value="(\w{32})"', page.text)[-1])


# --- one run, and many ----------------------------------------------------------------------------


def test_a_stop_is_recorded_once_however_often_it_is_pressed(
    harness: Harness, browser: TestClient
) -> None:
    start(browser)
    key = uuid.uuid4().hex
    first, again = (
        told(press(browser, "stop", "1.1", key=key, reason="wrong <site>")) for _ in range(2)
    )
    assert first == {1: ("yes", "The stop is recorded.")}
    assert again == {1: ("yes", "This stop was already recorded.")}
    [row] = harness.store.runs.cancellations(1)
    assert (row["reason"], row["force"]) == ("wrong <site>", False)


def test_a_press_on_a_page_goes_back_to_it_with_a_note_that_is_shown_once(
    harness: Harness, browser: TestClient
) -> None:
    start(browser)
    harness.claim(1)
    form = {"do": "poll", "run": "1.1", "key": "a" * 32}
    answer = browser.post("/runs", data=form, headers={"Referer": "http://x/runs/1/log?task=1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/1/log?task=1")
    answer = browser.post("/runs", data=form, headers={"Referer": "http://x/runs/12"})
    assert answer.headers["location"] == "/runs/1"
    assert results(browser.get("/runs")) == [], "another window does not take the note"
    assert results(browser.get("/runs/1"))[0][:2] == ("run 1", True)
    assert results(browser.get("/runs/1")) == []
    assert press(browser, "poll", "99.1").status_code == 404
    for odd in ("", "x", "AAAA", "%00", "eA=="):
        browser.cookies.set("crawl_note", odd)
        assert browser.get("/runs/1").status_code == 200


def test_a_long_result_is_cut_for_its_cookie() -> None:
    request = Request({"type": "http", "headers": [], "path": "/", "state": {}})
    answer = go_back(request, "Stop", Outcome("run 1", None, False, "<é>" * 9000), "/runs/1")
    cookie = answer.headers["set-cookie"]
    assert len(cookie) < 2600
    scope = {"type": "http", "path": "/runs/1", "headers": [(b"cookie", cookie.encode())]}
    note = note_of(Request({**scope, "state": {}, "query_string": b"", "server": ("x", 80)}))
    assert note is not None
    assert note.outcomes[0].text.startswith("<é><é>")
    assert note.outcomes[0].text.endswith("…")


def test_each_of_a_selection_has_its_answer(harness: Harness, browser: TestClient) -> None:
    for _ in range(3):
        start(browser)
    harness.claim(2)
    answer = press(browser, "poll", "1.1", "2.1", "3.7", "99.1")
    found = told(answer)
    assert found[1][0] == "yes"
    assert found[2] == ("yes", "It is being checked.")
    assert found[3][0] == "no"
    assert "attempt 1 now, but the form showed attempt 7" in found[3][1]
    assert "does not exist" in found[99][1]
    assert "2 of 4" in answer.text


def test_what_changed_meanwhile_is_told_and_left_alone(
    harness: Harness, browser: TestClient
) -> None:
    """A page was left open, while somebody else resumed the run."""
    start(browser)
    harness.claim(1)
    harness.end(1)
    assert told(press(browser, "resume", "1.1")) == {1: ("yes", "Attempt 2 is accepted.")}
    for do in ("resume", "rerun", "stop", "poll"):
        assert told(press(browser, do, "1.1"))[1][0] == "no", do
    row = harness.run(1)
    assert (row.attempt, row.stop) == (2, None)


def test_force_needs_a_stop_before_it_or_the_number(harness: Harness, browser: TestClient) -> None:
    start(browser)
    start(browser)
    for typed in ("", "2", "x"):
        asked = press(browser, "force", "1.1", typed=typed)
        assert "Force stop run 1" in asked.text
        assert told(asked) == {}
    key = key_of(asked)
    assert harness.store.runs.cancellations(1) == []
    assert told(press(browser, "force", "1.1", typed=" 1 ", key=key))[1][0] == "yes"
    assert "Force stop 2 runs" in press(browser, "force", "1.1", "2.1").text
    press(browser, "stop", "2.1")
    assert told(press(browser, "force", "1.1", "2.1"))[2] == ("yes", "The forced stop is recorded.")


def test_a_deletion_needs_the_role_admin_and_the_number(
    harness: Harness, api: TestClient, keys: Keys
) -> None:
    api.headers.update(keys.headers("admin"))
    for _ in range(2):
        start(api)
    harness.claim(1)
    harness.end(1)
    api.headers.update(keys.headers("operate"))
    assert "Delete …" not in api.get("/runs/1").text
    assert press(api, "delete", "1.1", typed="1").status_code == 403
    api.headers.update(keys.headers("admin"))
    assert "Delete …" in api.get("/runs/1").text
    assert "Delete …" not in api.get("/runs/2").text, "it goes on"
    assert "Delete run 1" in press(api, "delete", "1.1").text
    assert harness.workflows.deletions == []
    assert "stop it first" in told(press(api, "delete", "2.1", typed="2"))[2][1]
    assert told(press(api, "delete", "1.1", typed="1"))[1] == ("yes", "Its deletion is recorded.")
    assert told(press(api, "delete", "1.1", typed="1"))[1] == (
        "yes",
        "Its deletion was already recorded.",
    )
    shown = api.get("/runs/1").text
    assert "by the-admin, not done yet" in shown
    assert not {"Delete …", ">Resume<", "Send again"} & set(
        re.findall("Delete …|>Resume<|Send again", shown)
    )


def test_all_that_fit_are_chosen_by_the_filter(browser: TestClient) -> None:
    for n in range(4):
        start(browser, tags=["odd"] if n % 2 else [])
    page = browser.get("/runs?tag=odd")
    link = html.unescape(re.findall(r'<a href="([^"]*)">Select all that match', page.text)[0])
    chosen = re.findall(r'name="run" value="(\S+)"[^>]* checked', browser.get(link).text)
    assert chosen == ["4.1", "2.1"]
    assert set(told(press(browser, "stop", *chosen))) == {2, 4}


def test_a_form_that_no_page_sends_is_refused(harness: Harness, browser: TestClient) -> None:
    for data, words in [
        ({"run": []}, "no run was selected"),
        ({"run": [f"{n}.1" for n in range(1, SELECTED_MAX + 2)]}, f"select at most {SELECTED_MAX}"),
        ({"run": ["1"]}, "run[0]"),
        ({"run": ["0.1"]}, "run[0]"),
        ({"run": ["1.1"], "do": "explode"}, "do: "),
        ({"run": ["1.1"], "key": "short"}, "key: "),
        ({"run": ["1.1"], "key": ""}, "key: missing"),
        ({"run": ["1.1"], "reason": "x" * 2001}, "reason: "),
        ({"run": ["1.1"], "force": "true"}, "force: unknown field"),
        ({"run": ["1.1"], "do": ["stop", "poll"]}, "do: given twice"),
    ]:
        start(browser)
        answer = browser.post("/runs", data={"do": "stop", "key": uuid.uuid4().hex, **data})
        assert answer.status_code == 422, data
        assert words in html.unescape(answer.text)
        assert harness.store.runs.cancellations(1) == []


def test_only_forms_are_taken(browser: TestClient) -> None:
    assert browser.post("/runs", json={"do": "stop"}).status_code == 415
    garbage = browser.post(
        "/runs", content=b"\xff=%ff", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert garbage.status_code == 400
    many = "&".join(["run=1.1"] * 2001)
    answer = browser.post(
        "/runs", content=many, headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert (answer.status_code, "more than 2000 fields" in answer.text) == (422, True)


def test_one_that_breaks_leaves_the_others(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(browser)
    start(browser)
    harness.workflows.down = True
    found = told(press(browser, "stop", "1.1", "2.1"))
    assert {done for done, _ in found.values()} == {"yes"}
    assert all("as soon as Temporal can be reached" in text for _, text in found.values())
    assert "Temporal refused the call" in told(press(browser, "poll", "1.1"))[1][1]
    get = type(harness.store.runs).get_run

    def broken(self: Any, run_id: int) -> Any:
        if run_id == 1:
            raise StoreUnavailable("the database does not answer")
        return get(self, run_id)

    monkeypatch.setattr(type(harness.store.runs), "get_run", broken)
    found = told(press(browser, "stop", "1.1", "2.1"))
    assert found[1] == ("no", "the database does not answer")
    assert found[2][0] == "yes"


def test_presses_carry_the_name_of_the_login(harness: Harness, api: TestClient, keys: Keys) -> None:
    api.post("/login", data={"token": keys.tokens["operate"]})
    run_id = start(api)
    press(api, "stop", f"{run_id}.1")
    assert harness.store.runs.cancellations(run_id)[0]["requested_by"] == "the-operate"


def test_deliveries_are_sent_again(harness: Harness, browser: TestClient) -> None:
    start(browser)
    harness.claim(1)
    refused = browser.post("/runs/1/export", data={"what": "all"})
    assert (refused.status_code, "has no verdict" in refused.text) == (409, True)
    harness.end(1)
    sent = followed(browser, browser.post("/runs/1/export", data={"what": "all"}))
    assert told(sent)[1][0] == "yes"
    assert len(harness.workflows.exports) == 1


# --- start ----------------------------------------------------------------------------------------


def test_a_run_starts_once_for_each_form(harness: Harness, browser: TestClient) -> None:
    page = browser.get("/runs/new?crawler=plain")
    form = {
        "key": key_of(page),
        "crawler": "plain",
        "arg.page": "7",
        "tags": "a, b",
        "limit.run_timeout_s": "60",
    }
    for _ in range(2):
        answer = browser.post(
            "/runs/new", data={**form, "settings": "LOG_LEVEL=INFO\r\n\r\n", "priority": "2"}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs/1"), answer.text
    [row] = harness.store.runs.list_runs()
    request = harness.store.runs.request_of(row.run_id)
    assert (request.args, request.settings) == ({"page": "7"}, {"LOG_LEVEL": "INFO"})
    assert (request.tags, request.priority, request.limits.run_timeout_s) == (["a", "b"], 2, 60.0)
    assert request.limits.stall_timeout_s == 77.0
    changed = browser.post("/runs/new", data={**form, "tags": "c"})
    assert changed.status_code == 422
    assert USED in changed.text
    assert len(harness.store.runs.list_runs()) == 1


def test_a_form_that_is_wrong_comes_back_as_it_was(harness: Harness, browser: TestClient) -> None:
    for field, value, words in [
        ("arg.nonsense", "1", "nonsense"),
        ("limit.run_timeout_s", "soon", "limits.run_timeout_s: 'soon' is not allowed"),
        ("limit.run_timeout_s", "-1", "limits.run_timeout_s"),
        ("priority", "9", "priority"),
        ("settings", "LOG_LEVEL", "settings: line 1: write NAME=VALUE"),
        ("settings", "A=1\nA=2", "settings: line 2"),
        ("tasks", '{"page": "1"}\nnonsense', "tasks: line 2"),
        ("tasks", '{"page": 1}', "tasks[0].args.page"),
        ("tasks", "[" * 100_000, "tasks: line 1"),
        ("resources.memory", "much", "resources.memory"),
        ("max_parallel_tasks", "x", "max_parallel_tasks"),
        ("colour", "red", "colour: unknown field"),
        ("key", "", "key: missing"),
    ]:
        form = {
            "key": "0" * 32,
            "crawler": "plain",
            "arg.page": "<kept>",
            "tags": "mine",
            field: value,
        }
        answer = browser.post("/runs/new", data=form)
        assert answer.status_code == 422, field
        assert words in html.unescape(answer.text)
        assert 'value="&lt;kept&gt;"' in answer.text
        assert harness.store.runs.list_runs() == []


def test_a_start_that_a_quota_refuses_can_be_sent_again(
    harness: Harness, browser: TestClient
) -> None:
    harness.store.initiation._quotas = {"pool:default": {"starts_per_hour": 1}}
    start(browser)
    form = {"key": "0" * 32, "crawler": "plain", "arg.page": "<kept>"}
    answer = browser.post("/runs/new", data=form)
    assert (answer.status_code, "of pool default: 1 of 1 in use; free at" in answer.text) == (
        429,
        True,
    )
    assert ('value="&lt;kept&gt;"' in answer.text, key_of(answer)) == (True, form["key"])
    harness.clock.forward(3600)
    assert browser.post("/runs/new", data=form).headers["location"] == "/runs/2"


def test_without_the_database_what_was_typed_stays(
    harness: Harness, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the database does not answer")

    form = {"key": "0" * 32, "crawler": "plain", "arg.page": "<kept>"}
    with monkeypatch.context() as patch:
        patch.setattr(type(harness.store.initiation), "reserve_run", away)
        answer = browser.post("/runs/new", data=form)
    assert (answer.status_code, "the database does not answer" in answer.text) == (503, True)
    assert ('value="&lt;kept&gt;"' in answer.text, key_of(answer)) == (True, form["key"])
    assert browser.post("/runs/new", data=form).headers["location"] == "/runs/1"


def test_a_form_is_filled_in_from_a_run(harness: Harness, browser: TestClient) -> None:
    args = {"site": "http://x/?a=1&b=2", "page": "two\nlines \u202e"}
    tasks = [{"args": {"page": "\u202e1"}}, {"args": {"page": '"2"'}}]
    start(
        browser, args=args, tags=["a", "b c"], flow_id="f", tasks=tasks, limits={"run_timeout_s": 5}
    )
    page = browser.get("/runs/new?like=1")
    # As a browser would send it again.
    fields = re.findall(r'<input[^>]* name="([^"]+)" value="([^"]*)"', page.text)
    fields += re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n?([^<]*)</textarea>', page.text)
    form = {name: html.unescape(value).replace("\n", "\r\n") for name, value in fields}
    answer = browser.post("/runs/new", data={**form, "tags": "a, b c"})
    assert answer.headers.get("location") == "/runs/2", html.unescape(answer.text)
    first, second = (harness.store.runs.request_of(run_id) for run_id in (1, 2))
    assert (second.args, second.flow_id, second.limits) == (first.args, "f", first.limits)
    rows = (harness.store.tasks.list_tasks(run_id) for run_id in (1, 2))
    before, after = ([json.dumps(dict(row.args)) for row in some] for some in rows)
    assert before == after
    empty = start(browser, args={"page": ""})
    assert "an empty value for arg.page" in browser.get(f"/runs/new?like={empty}").text


def test_a_catalogue_that_is_away_is_told(harness: Harness, browser: TestClient) -> None:
    harness.scheduler.faults.add(
        SchedulerUnavailable("the scheduler service does not answer"), times=9
    )
    page = browser.get("/runs/new")
    assert page.status_code == 200
    assert "the scheduler service does not answer" in page.text
    assert browser.get("/runs/new?crawler=nobody").status_code == 200
    assert browser.get("/runs/new?like=99").status_code == 404
