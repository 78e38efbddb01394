"""304: what a client already has is not sent again while it is true, and nothing else is withheld."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.run import ExportResult, StopIntent
from crawler_lifecycle.domain.task import Change, Counters, Observation, Phase, TaskStatus
from crawler_lifecycle.ports.polls import Details, Poll, TaskFinding
from tests.gateway.gateway_harness import CRAWLERS, Harness


class Run:
    """A run with two tasks, and everything that may happen to it."""

    def __init__(self, harness: Harness, client: TestClient) -> None:
        self.harness, self.store, self.client = harness, harness.store, client
        body = {"crawler": "plain", "tasks": [{}, {}]}
        self.run_id = int(client.post("/v1/runs", json=body).json()["run_id"])
        harness.claim(self.run_id)
        harness.deploy(self.run_id)
        self.fence = harness.fence(self.run_id)
        self.first = self.store.tasks.list_tasks(self.run_id)[0].task_id

    def poll(self, *findings: TaskFinding) -> None:
        now = self.harness.clock()
        seen = [finding.observation for finding in findings]
        self.store.polls.record_poll(
            self.fence, Poll(now, 0.1, seen), findings, now + timedelta(seconds=60)
        )

    def poll_error(self) -> None:
        self.store.polls.record_poll_error(self.fence, "the cluster does not answer")

    def stop(self) -> None:
        self.store.stops.record_stop(self.run_id, StopIntent(self.harness.clock()), "s1")

    def stop_is_acted_on(self) -> None:
        self.store.stops.acted_on_stop(self.fence, self.harness.clock())

    def details(self) -> None:
        """Counters of a task arrive without a change of status, and after the poll that found them."""
        self.store.polls.save_details(self.fence, [Details(self.first, "log", Counters(5, 6, 7))])
        self.store.polls.apply_details(self.fence)

    def task_lost(self) -> None:
        now = self.harness.clock()
        change = Change(
            self.first, TaskStatus.PENDING, TaskStatus.LOST, now, "lost", "It vanished", "vanished"
        )
        self.poll(TaskFinding(change, Observation(0, 1, Phase.GONE, now)))
        self.store.polls.apply_details(self.fence)
        self.store.polls.apply_findings(self.fence, "look")

    def event(self) -> None:
        self.store.events.append_event(self.fence, "run.told", f"told-{self.run_id}", {})

    def delivery_failed(self) -> None:
        self.event()
        event = self.store.events.find_event(f"told-{self.run_id}")
        self.store.events.record_delivery(event.seq, "bus", "refused")

    def exported(self) -> None:
        self.store.exports.record_export(
            self.fence, "exported", ExportResult("file:///x.zip", 10, 1, "0" * 64), None
        )

    def becomes_stale(self) -> None:
        self.poll()
        self.client.get(f"/v1/runs/{self.run_id}")
        self.harness.clock.forward(121)


@pytest.fixture
def run(harness: Harness, client: TestClient) -> Run:
    return Run(harness, client)


PATHS = ["", "/tasks", "/timeline", "/corrections"]


@pytest.mark.parametrize(
    "path", ["/v1/runs", "/v1/corrections", "/v1/crawlers", *[f"RUN{path}" for path in PATHS]]
)
def test_what_did_not_change_is_not_sent_again(client: TestClient, run: Run, path: str) -> None:
    path = path.replace("RUN", f"/v1/runs/{run.run_id}")
    run.task_lost()
    first = client.get(path)
    tag = first.headers["etag"]
    assert (first.status_code, first.headers["cache-control"]) == (200, "private, no-cache")
    # The passage of time alone is no news; the client can calculate it from verified_at.
    run.harness.clock.forward(3)
    for known in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    for known in ('"other"', tag[:-3] + '"', "", "garbage"):
        assert client.get(path, headers={"If-None-Match": known}).status_code == 200


#: What may happen, and which responses it changes. All of them must change with everything that
#: they contain.
CHANGES: list[tuple[Callable[[Run], None], set[str]]] = [
    (Run.poll, {""}),
    (Run.poll_error, {""}),
    (Run.stop, {"", "/timeline"}),
    (Run.details, {"/tasks"}),
    (Run.task_lost, {"", "/tasks", "/timeline", "/corrections"}),
    (Run.event, {"", "/timeline"}),
    (Run.delivery_failed, {"", "/timeline"}),
    (Run.exported, {"", "/timeline"}),
    (Run.becomes_stale, {""}),
]


@pytest.mark.parametrize(
    ("happens", "changed"), CHANGES, ids=[happens.__name__ for happens, _ in CHANGES]
)
def test_changes_change_the_validator(
    client: TestClient, run: Run, happens: Callable[[Run], None], changed: set[str]
) -> None:
    def answers() -> dict[str, tuple[str, dict[str, object]]]:
        found = {path: client.get(f"/v1/runs/{run.run_id}{path}") for path in PATHS}
        return {path: (answer.headers["etag"], answer.json()) for path, answer in found.items()}

    before = answers()
    happens(run)
    after = answers()
    assert {path for path in PATHS if before[path][0] != after[path][0]} >= changed
    for path in PATHS:
        told = [{**body, "verified_ago_s": None} for _, body in (before[path], after[path])]
        assert (before[path][0] == after[path][0]) == (told[0] == told[1]), path


def test_a_stop_that_is_acted_on_is_news(client: TestClient, run: Run) -> None:
    run.stop()
    path = f"/v1/runs/{run.run_id}"
    tag = client.get(path).headers["etag"]
    run.harness.clock.forward(1)
    run.stop_is_acted_on()
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_one_validator_is_not_good_for_another_answer(client: TestClient, run: Run) -> None:
    paths = [f"/v1/runs/{run.run_id}{path}" for path in PATHS]
    paths += [
        f"/v1/runs/{run.run_id}/tasks?page_size=1",
        "/v1/runs",
        "/v1/runs?page_size=1&crawler=strict",
    ]
    tags = [client.get(path).headers["etag"] for path in paths]
    assert len(set(tags)) == len(tags)


def test_a_changed_catalogue_is_news(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.runs.crawlers.FRESH_S", 0.0)
    known = list(CRAWLERS)
    monkeypatch.setattr(harness.scheduler, "crawlers", lambda: known)
    with harness.client(harness.new_app()) as client:
        tag = client.get("/v1/crawlers").headers["etag"]
    known.append(CrawlerDefinition("new", CrawlerKind.COMMAND, command=["true"]))
    with harness.client(harness.new_app()) as client:
        answer = client.get("/v1/crawlers", headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert json.loads(answer.content)["crawlers"][-1]["name"] == "new"
