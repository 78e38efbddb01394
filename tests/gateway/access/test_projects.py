"""Projects: what a token of one project sees of another one, through every route. It is nothing at all."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.access.operations import ACCESS, Operations
from crawler_lifecycle.gateway.scrapyd.routes import READS, WRITES
from crawler_lifecycle.ports.looks import Correction
from crawler_lifecycle.ports.runs import Ticket
from tests.gateway.gateway_world import World
from tests.gateway.keys import Keys
from tests.support.fakes.logs import FakeLogs

#: The numbers of everything of project a begin here, so that one of them is found in any answer.
FIRST = 4_711_000
TABLES = ("run_history", "manager", "graph", "schedule", "webhook", "task_history", "correction", "manager_item")
RUN, MANAGER, NAME, GRAPH = FIRST + 1, FIRST + 1, "zebra", "zebra-graph"
WEBHOOK = {"url": "https://hooks.example.com/zebra", "secrets": ["env:CRAWL_HOOK"]}
STEP = {"path": "zebra-step", "kind": "crawl", "job": {"crawler": "plain"}}
SCHEDULE = {"run": {"crawler": "plain", "args": {"page": NAME}}, "every_s": 3600}
#: What stands for a parameter of a path: everything of project a. A route with another parameter needs a decision here.
OF_A: Mapping[str, object] = {
    **{"run_id": RUN, "manager_id": MANAGER, "id": GRAPH, "name": NAME, "job": "zebra-request"},
    **{"index": 0, "attempt": 1, "page": 0, "project": "default", "spider": "plain"},
}
#: The parameters that name something; the others only say more about it.
NAMING = {"run_id", "manager_id", "id", "name", "job"}
QUERIES: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("getFile", "showFile"), {"name": "task-0/items.jsonl"}),
    **dict.fromkeys(("getStep", "getStepResult"), {"path": "zebra-step"}),
    **dict.fromkeys(("listRuns", "showRuns"), {"flow_id": "zebra-flow", "tag": "zebra"}),
    "listGraphs": {"id": GRAPH},
    "listManagers": {"name": NAME, "flow_id": "zebra-flow"},
    "showStart": {"like": RUN},
    "showPutSchedule": {"name": NAME},
    "showPutWebhook": {"name": NAME},
    "scrapydStatus": {"job": "zebra-request"},
}
BODIES: Mapping[str, Any] = {
    "addTasks": {"tasks": [{}]},
    "addJobs": {"jobs": [{}]},
    "capManager": {"cap": 2},
    "addGraphPage": {"steps": [STEP]},
    "appendSteps": {"steps": [STEP]},
    "backfillSchedule": {"after": "2026-11-20T11:00:00Z"},
    "uploadFiles": {"part": 0, "bytes": 1, "md5": "1B2M2Y8AsgTpgAmY7PhCfg=="},
}
FORMS: Mapping[str, Mapping[str, object]] = {
    "pressRuns": {"do": "stop", "run": f"{RUN}.1"},
    "pressExport": {"what": "again"},
    "pressManager": {"do": "pause", "attempt": "1"},
    "pressGraph": {"do": "cancel", "attempt": "1", "step": "zebra-step"},
    "pressSchedule": {"do": "trigger"},
    "pressWebhook": {"do": "test"},
    "scrapydCancel": {"project": "default", "job": "zebra-request"},
}
#: They make what they name if it is free (see ``test_a_name_of_another_project_is_taken``).
PUTS = {"putSchedule", "putWebhook"}
#: They do not end: see the tests of streams below.
STREAMS = {"streamEvents", "streamPage"}
#: Headers that differ from answer to answer.
VARY = {"x-request-id", "content-length", "set-cookie"}
#: Answers of project a itself: there is nothing to read, though the thing is there.
EMPTY = {"getFile", "showFile", "downloadArchive", "getStepResult", "getFeed"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "a", "b")


class Bundles:
    """A storage that takes everything."""

    def ticket(self, *_: object) -> Ticket:
        return Ticket("https://storage.example.com/zebra", {}, datetime(2026, 11, 20, 13, tzinfo=UTC))


@dataclass
class Doors:
    """A gateway, asked with the tokens of two projects and of all of them."""

    world: World
    keys: Keys
    logs: FakeLogs

    def ask(self, client: TestClient, who: str, method: str, path: str, **more: Any) -> Any:
        return client.request(method, path, headers=self.keys.headers(who), **more)

    def open(self) -> Any:
        more: dict[str, Any] = {"entrance": self.keys.entrance(quota=None), "scrapyd": "default", "logs": self.logs}
        return self.world.client(self.world.new_app(**more, bundles=Bundles()))

    def walk(self, who: str, *, only_get: bool = False) -> Iterator[tuple[str, str, Any]]:
        """Ask every route for what project a has, or will have. A new gateway has nothing in its memory."""
        with self.open() as client:
            for pattern, methods, name in Operations(client.app)._known:  # type: ignore[arg-type]
                if name in STREAMS or (only_get and "GET" not in methods):
                    continue
                values = {one: str(OF_A[one]) for one in pattern.groupindex}
                [method] = methods - {"HEAD"}
                path = _filled(pattern, values)
                more: dict[str, Any] = {"params": QUERIES.get(name), "json": BODIES.get(name), "follow_redirects": False}
                if name in FORMS:
                    more["data"] = {**FORMS[name], **({"key": uuid.uuid4().hex} if "do" in FORMS[name] else {})}
                yield name, f"{method} {path}", self.ask(client, who, method, path, **more)

    def fill(self, who: str) -> None:
        """Make one of each, with the word zebra wherever a person may write one."""
        said = {"requested_by": NAME, "tags": [NAME], "parent": "zebra-parent"}
        with self.open() as client:

            def send(method: str, path: str, body: Any) -> None:
                answer = self.ask(client, who, method, path, json=body)
                assert answer.status_code < 300, (path, answer.text)

            run = {"crawler": "plain", "args": {"page": NAME}, "flow_id": "zebra-flow", "request_id": "zebra-request"}
            send("POST", "/v1/runs", run | said)
            send("POST", "/v1/runs", run | said | {"request_id": "zebra-ended"})
            send("POST", "/v1/managers", {"crawler": "plain", "name": NAME, "flow_id": "zebra-flow", **said})
            send("POST", f"/v1/managers/{MANAGER}/jobs", {"jobs": [{"spider_args": {"page": NAME}}]})
            send("POST", "/v1/graphs", {"id": GRAPH, "name": NAME, "steps": [STEP], **said})
            send("PUT", f"/v1/schedules/{NAME}", SCHEDULE)
            send("POST", f"/v1/schedules/{NAME}/trigger", None)
            send("PUT", f"/v1/webhooks/{NAME}", WEBHOOK)
            send("POST", f"/v1/webhooks/{NAME}/test", None)
        self.logs.write(b"zebra\n", RUN)
        self.world.claim(RUN)
        self.world.deploy(RUN)
        wrong = [Correction(CorrectionKind.KILLED, "PROCESSING", "FAILED")]
        self.world.store.corrections.record_corrections(RUN, wrong)
        self.world.claim(RUN + 1)
        self.world.end(RUN + 1, RunStatus.COMPLETED)


def _filled(pattern: re.Pattern[str], values: Mapping[str, str]) -> str:
    """The path that a route of Starlette matches, with these values."""
    path = pattern.pattern.removeprefix("^").removesuffix("$")
    for name, value in values.items():
        path = re.sub(rf"\(\?P<{name}>[^)]*\)", value, path)
    return path.replace("\\", "")


@pytest.fixture
def doors(world: World, keys: Keys) -> Doors:
    with world.store.database.writing() as conn:
        for table in TABLES:
            conn.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), {"name": table, "seq": FIRST})
    return Doors(world, keys, FakeLogs())


def told(answer: Any) -> tuple[object, ...]:
    """Everything that an answer says, without names that are made anew for each."""
    heads = sorted((name, value) for name, value in answer.headers.items() if name not in VARY)
    return answer.status_code, heads, re.sub(r"\b[0-9a-f]{32}\b", "KEY", answer.text)


def test_of_another_project_every_route_says_what_it_says_of_nothing(doors: Doors) -> None:
    """Each route, as the table has it, is asked for everything of project a: before it is there, and afterwards."""
    before = {name: (asked, told(answer)) for name, asked, answer in doors.walk("b-admin")}
    assert set(before) | STREAMS == set(ACCESS) - {"getAsset"} | {"getAsset"}
    doors.fill("a-admin")
    for name, asked, answer in doors.walk("b-admin"):
        assert (asked, told(answer)) == before[name], name
        named = any(str(OF_A[one]) in asked for one in NAMING)
        if named and name not in PUTS | {"getAsset"}:
            assert answer.status_code == 404, (name, answer.status_code, answer.text)
    mine = {name: answer for name, _, answer in doors.walk("a-admin", only_get=True)}
    missing = {name for name, answer in mine.items() if answer.status_code != 200}
    everything = {name for name, access in ACCESS.items() if access.everything}
    assert missing <= EMPTY | everything | {"showLogin", "getAsset", "readyz"}, missing
    uids = [doors.world.run(RUN).run_uid, doors.world.manager(MANAGER).manager_uid]
    assert all(any(uid in answer.text for answer in mine.values()) for uid in uids), "they would be found"


def test_dialect_is_walked_too() -> None:
    assert {f"scrapyd{one.capitalize()}" for one in READS + WRITES} <= set(ACCESS)
