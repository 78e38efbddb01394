"""Each list accepts every status that it shows as a filter, and then shows only rows with it."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.cli.runs import verbs
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.run import RunStatus, Stage
from crawler_lifecycle.domain.status_words import MANAGER_WORDS, RUN_WORDS, state_word, status_word
from crawler_lifecycle.features.graphs.domain.spec import GraphState, StepState
from crawler_lifecycle.features.graphs.gateway.answers import GraphFilters, StepFilters
from crawler_lifecycle.features.graphs.store.tables import graph
from crawler_lifecycle.features.managers.cli import verbs as jobs
from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.features.schedules import cli as schedules
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.webhooks import cli as webhooks
from crawler_lifecycle.features.webhooks.gateway.answers import DeliveryStatus
from crawler_lifecycle.store.runs.tables import run_history
from tests.gateway.gateway_harness import Harness

ROWS = 60
STATUSES = [status.value for status in RunStatus]


@pytest.fixture
def client(harness: Harness) -> Iterator[TestClient]:
    with harness.client() as client:
        yield client


def listed(client: TestClient, path: str, plural: str, **params: Any) -> list[dict[str, Any]]:
    """Return all rows of a list, read in small pages."""
    rows: list[dict[str, Any]] = []
    token = None
    for page_size in itertools.cycle((7, 1, 4)):
        given = {**params, "page_size": page_size} | ({"page_token": token} if token else {})
        answer = client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        rows += answer.json()[plural]
        token = answer.json()["next_page_token"]
        if token is None:
            return rows
    raise AssertionError


def runs(harness: Harness, client: TestClient) -> None:
    chosen = random.Random(3)
    for _ in range(ROWS):
        run_id = client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
        fields = status_of(harness, chosen)
        if fields["ended_at"]:
            fields["ended_by"] = chosen.choice(["person", "crawler"])
        edit(harness, run_history, run_history.c.run_id == run_id, **fields)


def managers(harness: Harness, client: TestClient) -> None:
    chosen = random.Random(4)
    for n in range(ROWS):
        body = {"name": f"n{n}", "flow_id": f"f{n}", "crawler": "plain"}
        key = client.post("/v1/managers", json=body).json()["manager_id"]
        fields = status_of(harness, chosen) | {"paused": chosen.random() < 0.5}
        if fields["ended_at"]:
            fields["outcome"] = chosen.choice(["cancelled", "failed"])
        edit(harness, manager, manager.c.manager_id == key, **fields)


def status_of(harness: Harness, chosen: random.Random) -> dict[str, Any]:
    status = chosen.choice(STATUSES)
    ended = status in ("COMPLETED", "FAILED")
    stopped = status == "STOPPING" or (ended and chosen.random() < 0.5)
    times = {"ended_at": ended, "stop_requested_at": stopped}
    return {"status": status} | {
        name: harness.clock() if is_set else None for name, is_set in times.items()
    }


def edit(harness: Harness, table: Any, which: Any, **fields: Any) -> None:
    with harness.store.runs._db.writing() as conn:
        conn.execute(table.update().where(which).values(**fields))


@pytest.mark.parametrize(
    ("make", "plural", "key", "words"),
    [
        (runs, "runs", "run_id", RUN_WORDS),
        (managers, "managers", "manager_id", MANAGER_WORDS),
    ],
    ids=["runs", "managers"],
)
def test_the_filter_of_a_list_takes_every_word_that_it_shows(
    harness: Harness,
    client: TestClient,
    make: Callable[[Harness, TestClient], None],
    plural: str,
    key: str,
    words: Any,
) -> None:
    make(harness, client)
    path = f"/v1/{plural}"
    everything = listed(client, path, plural)
    assert len(everything) == ROWS
    assert {status_word(row) for row in everything} == {*STATUSES, *words}

    def fits(row: dict[str, Any], asked: list[str]) -> bool:
        return bool({row["status"], status_word(row)} & set(asked))

    every = [*STATUSES, *words]
    choices = [[word] for word in every] + [list(two) for two in itertools.combinations(every, 2)]
    for asked in choices:
        expected = [row[key] for row in everything if fits(row, asked)]
        written = [word.swapcase() for word in asked]
        found = listed(client, path, plural, status=written)
        assert [row[key] for row in found] == expected, asked
        total = client.get(path, params={"status": asked, "page_size": 2}).json()["total"]
        assert total == len(expected), asked
        assert [row[key] for row in listed(client, path, plural, status=asked, sort="status")]
    for word in words:  # narrower than a status: each row shows exactly this word
        assert {status_word(row) for row in listed(client, path, plural, status=word)} == {word}
        page = client.get(f"/{'' if plural == 'runs' else plural}", params={"status": word})
        assert page.status_code == 200
        assert f'">{word}</span>' in page.text.replace("\n", "")


def test_an_unknown_word_is_refused_with_the_words_that_are_accepted(client: TestClient) -> None:
    for path, words in (("/v1/runs", RUN_WORDS), ("/v1/managers", MANAGER_WORDS)):
        answer = client.get(path, params={"status": "halted"})
        assert answer.status_code == 422
        accepted = ", ".join([*STATUSES, *words])
        said = f"status[0]: 'halted' is not allowed; choose from {accepted}"
        assert said.lower() in answer.json()["detail"].lower()


@pytest.mark.parametrize("kind", [GraphState, StepState])
def test_filters_of_graphs_take_the_words_that_people_see_and_those_of_the_api(kind: Any) -> None:
    filters: Any = GraphFilters if kind is GraphState else StepFilters
    assert len({state_word(state) for state in kind}) == len(kind)
    for state in kind:
        for word in (state.value, state_word(state), state_word(state).upper()):
            assert filters(state=[word]).state == [state]
    with pytest.raises(ValueError, match=r"choose from .*running.*failed.*executing.*discarded"):
        filters(state=["broken"])


def test_graphs_are_filtered_by_the_words_that_their_list_shows(
    harness: Harness, client: TestClient
) -> None:
    chosen = random.Random(5)
    for n in range(20):
        steps = [{"path": "a", "kind": "crawl", "job": {"crawler": "plain"}}]
        body = {"id": f"g{n}", "steps": steps}
        answer = client.post("/v1/graphs", json=body)
        assert answer.status_code == 202, answer.text
        state = chosen.choice(list(GraphState))
        ended = harness.clock() if state.final else None
        edit(harness, graph, graph.c.graph_key == f"g{n}", state=state.value, ended_at=ended)
    everything = listed(client, "/v1/graphs", "graphs", state=list(GraphState))
    for state in GraphState:
        expected = [row["id"] for row in everything if row["state"] == state]
        for word in (state.value, state_word(state)):
            found = listed(client, "/v1/graphs", "graphs", state=word)
            assert expected
            assert [row["id"] for row in found] == expected
            page = client.get("/graphs", params={"state": word}).text
            shown = re.findall(r'<span class="status ([a-z]+)">([a-z]+)</span>', page)
            assert set(shown) == {(state_word(state), state_word(state))}
            assert not {"discarded", "executing"} & set(re.findall(r">([a-z]+)<", page))


def test_the_command_line_takes_every_word_of_other_lists() -> None:
    assert {*get_args(schedules.Decision)} == {*Decision}
    assert {*get_args(webhooks.Status)} == {*get_args(DeliveryStatus)}
    assert {*get_args(jobs.State)} == {"all", *JobState}
    assert {*get_args(verbs.KIND)} == {*CorrectionKind}
    assert {*get_args(verbs.Stage)} == {*Stage}
