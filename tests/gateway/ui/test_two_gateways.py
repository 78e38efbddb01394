"""Two gateways behind one address: a form may reach both, and still has its effect once."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.gateway.access.logins import COOKIE
from crawler_lifecycle.gateway.access.tokens import FRESH_S
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.ui.conftest import as_browser, followed, results
from tests.gateway.ui.test_things import words

STEPS = [{"path": name, "kind": "crawl", "job": {"crawler": "plain"}} for name in ("a", "b")]
Send = Callable[..., list[Any]]


@pytest.fixture
def both(harness: Harness) -> Iterator[list[TestClient]]:
    """Browsers at two gateways, which share only database and Temporal."""
    with ExitStack() as stack:
        yield [as_browser(stack.enter_context(harness.client(harness.new_app()))) for _ in range(2)]


@pytest.fixture
def send(harness: Harness, both: list[TestClient]) -> Send:
    """Send one form to both, twice each, with some seconds between."""

    def sent(path: str, **data: Any) -> list[Any]:
        answers, key = [], uuid.uuid4().hex
        for client in (*both, *both):
            answers.append(followed(client, client.post(path, data={"key": key, **data})))
            harness.clock.forward(2)
        return answers

    return sent


def hidden(page: Any) -> dict[str, str]:
    """Return the hidden fields of the first form of a page that does something, except its key."""
    form = page.text.partition("<main")[2].partition('method="post"')[2].partition("</form>")[0]
    found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    return {name: html.unescape(value) for name, value in found.items() if name != "key"}


def test_a_run_is_started_stopped_and_resumed_once(
    harness: Harness, both: list[TestClient], send: Send
) -> None:
    form = {"key": uuid.uuid4().hex, "crawler": "plain"}
    led = [client.post("/runs/new", data=form).headers["location"] for client in (*both, *both)]
    assert set(led) == {"/runs/1"}
    assert len(harness.store.runs.list_runs()) == 1
    harness.claim(1)
    send("/runs", do="stop", run="1.1")
    send("/runs", do="force", run="1.1")
    assert [row["force"] for row in harness.store.runs.cancellations(1)] == [False, True]
    harness.end(1)
    for do in ("resume", "rerun"):
        answers = send("/runs", do=do, run="1.1")
        assert "in attempt 2 now" in answers[-1].text
    assert harness.run(1).attempt == 2


def test_a_schedule_begins_once(harness: Harness, both: list[TestClient], send: Send) -> None:
    form = {"name": "nightly", "kind": "run", "crawler": "plain", "every_s": "3600"}
    for client in (*both, *both):
        assert client.post("/schedules/new", data=form).headers["location"] == "/schedules/nightly"
    row = harness.schedule()
    assert row.revision == 1
    for n in (1, 2):
        form = hidden(both[0].get("/schedules/nightly"))
        answers = [results(one)[0] for one in send("/schedules/nightly", do="trigger", **form)]
        assert answers[0][1]
        assert "requested the due time" in answers[1][2]
        assert answers[2:] == answers[:2], "each gateway tells the same again"
        assert len(harness.store.schedules.list_firings(row.schedule_id)) == n
    window = {"after": "2026-11-19T00:30:00Z", "until": "2026-11-19T03:30:00Z", "counted": "3"}
    send("/schedules/nightly", do="backfill", **window)
    assert len(harness.store.schedules.list_firings(row.schedule_id)) == 2 + 3


def test_a_webhook_is_made_and_tested_once(
    harness: Harness, both: list[TestClient], send: Send
) -> None:
    form = {"name": "shop", "url": "https://hooks.example.com/x", "secret": "env:CRAWL_HOOK"}
    for client in (*both, *both):
        assert client.post("/webhooks/new", data=form).headers["location"] == "/webhooks/shop"
    before = harness.store.events.last_event_seq()
    for n in (1, 2):
        answers = send("/webhooks/shop", do="test", **hidden(both[0].get("/webhooks/shop")))
        assert "somebody tested it after" in words(answers[1])
        assert harness.store.events.last_event_seq() == before + n


def test_a_manager_and_a_graph_take_each_command_once(
    harness: Harness, both: list[TestClient], send: Send
) -> None:
    both[0].post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    for do, more in (("pause", {}), ("limit", {"cap": "3"}), ("stop", {"reason": "enough"})):
        before = harness.store.events.last_event_seq()
        answers = [words(one) for one in send("/managers/1", do=do, attempt="1", **more)]
        assert "Nothing changed" not in answers[0]
        assert "Nothing changed" in answers[1], do
        assert harness.store.events.last_event_seq() <= before + 1
    both[0].post("/v1/graphs", json={"id": "nightly", "steps": STEPS})
    attempt = hidden(both[0].get("/graphs/nightly"))["attempt"]
    for do in ("cancel", "retry"):
        pages = send("/graphs/nightly/steps", do=do, step=f"a.{attempt}")
        answers = [results(one)[0] for one in pages]
        assert len(set(answers)) == 1, "what was done at first is told each time"
        assert "1 step changed" in answers[0][2]


def test_a_login_is_known_to_both_and_ends_with_its_token(harness: Harness, keys: Keys) -> None:
    """A logout removes the cookie from its browser.

    A copy of it stays valid at the other gateway until the token is gone.
    """
    with ExitStack() as stack:
        made = [harness.new_app(entrance=keys.entrance(login_key=b"k" * 32)) for _ in range(2)]
        one, other = (as_browser(stack.enter_context(harness.client(app))) for app in made)
        cookie = one.post("/login", data={"token": keys.tokens["read"]}).cookies[COOKIE]
        copy = {"Cookie": f"{COOKIE}={cookie}"}
        assert other.get("/", headers=copy).status_code == 200
        out = one.post("/logout")
        assert "Max-Age=0" in out.headers["set-cookie"]
        assert one.get("/", headers=copy).status_code == 303
        assert other.get("/", headers=copy).status_code == 200
        keys.file.write_text(keys.file.read_text().replace("the-read", "another"))
        keys.now += FRESH_S
        assert other.get("/", headers=copy).status_code == 303
