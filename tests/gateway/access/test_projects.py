"""Projects: a token of one project sees nothing of another, through any route."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditFinding, FindingKind
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.projects import limited, only
from crawler_lifecycle.domain.quotas import Quotas
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.sites.gateway import closings
from crawler_lifecycle.features.sites.store.entries import lock_sites
from crawler_lifecycle.features.sites.store.tables import run_site
from crawler_lifecycle.gateway.access.operations import ACCESS, Operations
from crawler_lifecycle.gateway.cursors import encode
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.forms import Once, Outcome
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.ports.runs import Ticket
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.temporal.operator.task_queues import Queue
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.keys import Keys
from tests.gateway.served import events, metric, served, take, until
from tests.support.databases import make_tables
from tests.support.fakes.logs import FakeLogs
from tests.support.issuer import SIGN_IN

#: The numbers of everything in project a begin here, so that each can be found in any response.
FIRST = 4_711_000
TABLES = (
    "run_history",
    "canary",
    "manager",
    "graph",
    "schedule",
    "webhook",
    "task_history",
    "correction",
    "manager_item",
    "incident",
)
RUN, MANAGER, NAME, GRAPH = FIRST + 1, FIRST + 1, "zebra", "zebra-graph"
WEBHOOK = {"url": "https://hooks.example.com/zebra", "secrets": ["env:CRAWL_HOOK"]}
STEP = {"path": "zebra-step", "kind": "crawl", "job": {"crawler": "plain"}}
SCHEDULE = {"run": {"crawler": "plain", "args": {"page": NAME}}, "every_s": 3600}
#: The values for parameters of a path: everything in project a. A route with another parameter
#: needs a decision here.
OF_A: Mapping[str, object] = {
    **{"run_id": RUN, "manager_id": MANAGER, "id": GRAPH, "name": NAME, "job": "zebra-request"},
    **{
        "index": 0,
        "attempt": 1,
        "page": 0,
        "project": "default",
        "spider": "plain",
        "crawler": "plain",
        "tab": "failures",
        "incident_id": FIRST + 1,
        "canary_id": FIRST + 1,
        "key": "0" * 32,
        "number": 1,
        "site": "zebra.example",
        "pool": "quagga",
        "package": "zebra-package",
        "version": "v1",
    },
}
OF_B = OF_A | {
    "run_id": 1,
    "manager_id": 1,
    "id": "okapi-graph",
    "name": "okapi",
    "job": "okapi-request",
    "incident_id": 1,
    "canary_id": 1,
    "site": "okapi.example",
    "pool": "herd",
    "package": "okapi-package",
}
#: The parameters that name something; the others only describe it.
NAMING = {
    "run_id",
    "manager_id",
    "id",
    "name",
    "job",
    "incident_id",
    "site",
    "pool",
    "package",
    "canary_id",
}
QUERIES: Mapping[str, Mapping[str, object]] = {
    **{key: {"name": "task-0/items.jsonl"} for key in ("getFile", "showFile")},
    **{key: {"path": "zebra-step"} for key in ("getStep", "getStepResult")},
    **{key: {"flow_id": "zebra-flow", "tag": "zebra"} for key in ("listRuns", "showRuns")},
    "showSearch": {"q": NAME},
    "getRobots": {"origin": "https://okapi.example"},
    "listGraphs": {"id": GRAPH},
    "listManagers": {"name": NAME, "flow_id": "zebra-flow"},
    "showStart": {"like": RUN},
    "joinChannel": {"path": "/page/events", "query": f"path=/runs/{RUN}"},
    "showPutSchedule": {"name": NAME},
    "showPutWebhook": {"name": NAME},
    "scrapydStatus": {"job": "zebra-request"},
}
BODIES: Mapping[str, Any] = {
    "addTasks": {"tasks": [{}]},
    "addJobs": {"jobs": [{}]},
    "setManagerLimit": {"cap": 2},
    "addGraphPage": {"steps": [STEP]},
    "appendSteps": {"steps": [STEP]},
    "approveStep": {"step": "zebra-step"},
    "backfillSchedule": {"after": "2026-11-20T11:00:00Z"},
    "leaseSites": {"sites": {}},
    "shareRobots": {"origin": "https://shop.example"},
    "usePackageVersion": {"version": "v1"},
    "putCrawler": {"entry": {"image": "zebra"}},
    "useCrawlerVersion": {"number": 1},
    "uploadFiles": {"part": 0, "bytes": 1, "md5": "1B2M2Y8AsgTpgAmY7PhCfg=="},
}
FORMS: Mapping[str, Mapping[str, object]] = {
    "pressRuns": {"do": "stop", "run": f"{RUN}.1"},
    "pressCrawlerRuns": {"do": "stop", "run": f"{RUN}.1", "stay": "true"},
    "pressExport": {"what": "again"},
    "pressManager": {"do": "pause", "attempt": "1"},
    "pressManagerRuns": {"do": "stop", "run": f"{RUN}.1", "stay": "true"},
    "pressGraphRuns": {"do": "stop", "run": f"{RUN}.1", "stay": "true"},
    "pressGraphSteps": {"do": "cancel", "step": "zebra-step.1"},
    "pressManagers": {"do": "pause", "manager": f"{MANAGER}.1"},
    "pressGraphs": {"do": "stop", "graph": f"{GRAPH}.1"},
    "pressGraph": {"do": "cancel", "attempt": "1"},
    "pressSchedule": {"do": "trigger"},
    "pressIncident": {"do": "mine"},
    "pressIncidents": {"do": "mine", "incident": f"{FIRST + 1}.1"},
    "pressWebhook": {"do": "test"},
    "scrapydCancel": {"project": "default", "job": "zebra-request"},
}
#: They create what they name if the name is free (see ``test_a_name_of_another_project_is_taken``).
PUTS = {"putSchedule", "putWebhook", "putPackageVersion"}
#: They do not end: see the tests of streams below.
STREAMS = {"streamEvents", "streamPage", "openChannel"}
#: They list the caller's own earlier requests: see ``test_recording.py``.
ACCESS_LOG = {"listAccess", "showAccess"}
#: Headers that differ between responses.
VARY = {"x-request-id", "content-length", "set-cookie"}
#: Keys of forms, and the number of the newest event, which belongs to the installation
#: (docs/security.md).
VARIES = re.compile(
    r"\b[0-9a-f]{32}\b|(?<=name=.seen. value=.)\d+|(?<=seen=)[0-9a-f]+|(?<=_behind_events{project=.b.} )[\d.]+"
)
#: Responses to project a itself that are empty although the subject exists.
EMPTY = {
    *(
        "getFile",
        "showFile",
        "downloadArchive",
        "downloadCode",
        "getStepResult",
        "getFeed",
        "getRobots",
    ),
    *("joinChannel", "leaveChannel", "showPackage"),
    # The crawler comes from the file (see catalogue/test_entries.py).
    *("getCrawler", "listCrawlerHistory"),
}


#: A pool of project a, and one that both projects use. Every pool and project has quotas.
POOLS = Pools({"quagga": Pool(max=9, project="a"), "herd": Pool(max=4)}, slots=20)
QUOTAS: Quotas = {
    f"{kind}:*": {"starts_per_hour": 90, "live_tasks": 90} for kind in ("pool", "project")
}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, "a", "b")


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    clock = Clock()
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    store = open_store(url, pool_size=30, clock=clock, pools=POOLS, quotas=QUOTAS)
    yield Harness(store, clock)
    store.close()


class Bundles:
    """A storage that accepts everything."""

    def ticket(self, *_: object) -> Ticket:
        return Ticket(
            "https://storage.example.com/zebra", {}, datetime(2026, 11, 20, 13, tzinfo=UTC)
        )


@dataclass
class Apis:
    """A gateway, called with the tokens of two projects and of all projects."""

    harness: Harness
    keys: Keys
    logs: FakeLogs

    def ask(self, client: TestClient, who: str, method: str, path: str, **more: Any) -> Any:
        return client.request(method, path, headers=self.keys.headers(who), **more)

    def app(self) -> FastAPI:
        more: dict[str, Any] = {
            "entrance": self.keys.entrance(quota=None),
            "scrapyd": "default",
            "logs": self.logs,
        }
        return self.harness.new_app(**more, bundles=Bundles())

    def open(self) -> Any:
        return self.harness.client(self.app())

    def walk(
        self, who: str, *, only_get: bool = False, of: Mapping[str, object] = OF_A
    ) -> Iterator[tuple[str, str, Any]]:
        """Ask every route for what project a has, or will have.

        A new gateway has nothing cached.
        """
        asks = json.dumps(QUERIES)
        queries = json.loads(
            asks if of is OF_A else asks.replace(NAME, "okapi").replace(str(RUN), "1")
        )
        with self.open() as client:
            for pattern, methods, name in Operations(client.app)._known:  # type: ignore[arg-type]
                if name in STREAMS or (only_get and "GET" not in methods):
                    continue
                values = {one: str(of[one]) for one in pattern.groupindex}
                [method] = methods - {"HEAD"}
                path = _filled(pattern, values)
                more: dict[str, Any] = {
                    "params": queries.get(name),
                    "json": BODIES.get(name),
                    "follow_redirects": False,
                }
                if name in FORMS:
                    more["data"] = {
                        **FORMS[name],
                        **({"key": uuid.uuid4().hex} if "do" in FORMS[name] else {}),
                    }
                yield name, f"{method} {path}", self.ask(client, who, method, path, **more)

    def number(self, first: int) -> None:
        """Let the numbers of everything new follow this one."""
        with self.harness.store.database.writing() as conn:
            for table in TABLES:
                conn.execute(
                    sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table}
                )
                row = {"name": table, "seq": first}
                conn.execute(
                    sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), row
                )

    def fill(self, who: str, word: str = NAME) -> None:
        """Make one of each, with the word zebra wherever a person may write one."""
        said = {"requested_by": word, "tags": [word], "parent": f"{word}-parent"}
        own = {"pool": "quagga"} if word == NAME else {}
        with self.open() as client:

            def send(method: str, path: str, body: Any) -> Any:
                answer = self.ask(client, who, method, path, json=body)
                assert answer.status_code < 300, (path, answer.text)
                return answer.json()

            run = {"crawler": "plain", "args": {"page": word}, "flow_id": f"{word}-flow", **said}
            main, ended, *herd = (
                int(
                    send("POST", "/v1/runs", {**run, "request_id": f"{word}-{name}", **more})[
                        "run_id"
                    ]
                )
                for name, more in (
                    *(("request", own), ("ended", {})),
                    *(
                        (f"herd-{n}", {"pool": "herd", "priority": 1, "tasks": [{}] * 3})
                        for n in range(2)
                    ),
                )
            )
            manager = send(
                "POST",
                "/v1/managers",
                {"crawler": "plain", "name": word, "flow_id": f"{word}-flow", **said},
            )
            jobs = {"jobs": [{"spider_args": {"page": word}, **own}]}
            send("POST", f"/v1/managers/{manager['manager_id']}/jobs", jobs)
            step, schedule, webhook = json.loads(
                json.dumps([STEP, SCHEDULE, WEBHOOK]).replace(NAME, word)
            )
            send(
                "POST", "/v1/graphs", {"id": f"{word}-graph", "name": word, "steps": [step], **said}
            )
            send("PUT", f"/v1/schedules/{word}", schedule)
            send("POST", f"/v1/schedules/{word}/trigger", None)
            send("PUT", f"/v1/webhooks/{word}", webhook)
            send("POST", f"/v1/webhooks/{word}/test", None)
        self.logs.write(f"{word}\n".encode(), main)
        for run_id in (main, *herd):
            self.harness.claim(run_id)
            self.harness.deploy(run_id)
        with self.harness.store.database.writing() as conn:
            host = f"{word}.example"
            lock_sites(conn, [host])
            conn.execute(sa.insert(run_site).values(run_id=main, host=host, site=host))
        wrong = [Correction(CorrectionKind.KILLED, "PROCESSING", "FAILED")]
        self.harness.store.corrections.record_corrections(main, wrong)
        self.harness.claim(ended)
        self.harness.end(ended, RunStatus.COMPLETED)
        now = self.harness.clock.now
        project = "a" if word == NAME else "b"
        needs = IncidentCondition("crawler_failing", f"crawlers/{word}", project, word, now, now)
        new = NewVersion(f"{word}-package", "v1", f"sha256:{'0' * 64}", 1, 1, note=word)
        with limited(project):
            self.harness.store.packages.add_version(new)
            tried = replace(new, version="v2", canary=CanarySettings(0.1))
            self.harness.store.packages.add_version(tried)
        self.harness.store.incidents.record_conditions([needs], lambda row: False)
        if word != NAME:
            return
        self.harness.workflows.queues = [
            Queue(names.QUEUE_CLUSTER, "activities", backlog=RUN, backlog_age_s=9.0)
        ]
        lost = AuditFinding("workflow/zebra", FindingKind.NO_WORKFLOW, "zebra", workflow_id="zebra")
        self.harness.store.findings.note_findings([lost])
        with self.harness.store.database.writing() as conn:  # its poll is overdue
            late = sa.text(
                "UPDATE run_history SET next_look_at = '2026-11-20 10:00:00.000000' WHERE run_id = :id"
            )
            conn.execute(late, {"id": RUN})


def _filled(pattern: re.Pattern[str], values: Mapping[str, str]) -> str:
    """Return the path that a route of Starlette matches, with these values."""
    path = pattern.pattern.removeprefix("^").removesuffix("$")
    for name, value in values.items():
        path = re.sub(rf"\(\?P<{name}>[^)]*\)", value, path)
    return path.replace("\\", "")


@pytest.fixture
def apis(harness: Harness, keys: Keys) -> Apis:
    found = Apis(harness, keys, FakeLogs())
    found.number(FIRST)
    harness.workflows.queues = [
        Queue(names.QUEUE_CLUSTER, "activities", backlog=1, backlog_age_s=2.0)
    ]
    return found


def told(answer: Any) -> tuple[object, ...]:
    """Return everything in a response, without names that differ each time."""
    heads = sorted((name, value) for name, value in answer.headers.items() if name not in VARY)
    return answer.status_code, heads, VARIES.sub("KEY", answer.text)


def test_of_another_project_every_route_says_what_it_says_of_nothing(
    apis: Apis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each route in the table is asked for everything of project a, before it exists and
    afterwards. Each route that reads is also asked for what project b has itself.
    """
    monkeypatch.setattr(closings, "WAIT_S", 0.0)
    apis.number(0)
    apis.fill("b-admin", "okapi")
    apis.number(FIRST)
    before = {name: (asked, told(answer)) for name, asked, answer in apis.walk("b-admin")}
    assert set(before) | STREAMS | SIGN_IN == set(ACCESS)
    own = {
        name: (asked, told(answer))
        for name, asked, answer in apis.walk("b-admin", only_get=True, of=OF_B)
    }
    apis.fill("a-admin")
    for name, asked, answer in apis.walk("b-admin", only_get=True, of=OF_B):
        if name in ACCESS_LOG:
            continue
        assert (asked, told(answer)) == own[name], name
        assert not re.search("zebra|quagga", answer.text), name
    for name, asked, answer in apis.walk("b-admin"):
        if name in ACCESS_LOG:
            continue
        assert (asked, told(answer)) == before[name], name
        assert "quagga" not in answer.text, name
        named = any(str(OF_A[one]) in asked for one in NAMING)
        if named and name not in PUTS | {"getAsset"}:
            status = 403 if ACCESS[name].everything else 404
            assert answer.status_code == status, (name, answer.status_code, answer.text)
    mine = {name: answer for name, _, answer in apis.walk("a-admin", only_get=True)}
    missing = {name for name, answer in mine.items() if answer.status_code != 200}
    everything = {name for name, access in ACCESS.items() if access.everything}
    moved = {"showCrawlers", "showPackages"}
    assert missing <= EMPTY | everything | moved | {"showLogin", "getAsset", "readyz"}, missing
    assert f"run {RUN}" in mine["getHealth"].text, "its poll is overdue"
    assert (
        "no worker polls crawler-lifecycle-cluster (activities), work waits"
        in mine["getHealth"].text
    )
    uids = [apis.harness.run(RUN).run_uid, apis.harness.manager(MANAGER).manager_uid]
    assert all(any(uid in answer.text for answer in mine.values()) for uid in uids), (
        "they would be found"
    )


def test_what_a_project_makes_and_begins_is_of_it(apis: Apis) -> None:
    apis.fill("a-admin")
    store = apis.harness.store
    assert {row.project for row in store.runs.list_runs()} == {"a"}
    found = [
        store.managers.get_manager(MANAGER),
        store.graphs.find_graph(GRAPH),
        apis.harness.schedule(NAME),
    ]
    assert [row.project for row in (*found, apis.harness.webhook(NAME))] == ["a"] * 4
    events = store.events.events_after(0)
    assert events
    assert {event.body["project"] for event in events} == {"a"}
    with apis.open() as client:
        again = apis.ask(
            client, "a-admin", "POST", f"/v1/runs/{RUN + 1}/resume", json={"rerun": True}
        )
        assert (again.status_code, again.json()["project"], again.json()["attempt"]) == (
            202,
            "a",
            2,
        )


def test_a_caller_of_all_projects_names_one_and_others_may_not(apis: Apis) -> None:
    bodies: dict[str, Any] = {
        "POST /v1/runs": {"crawler": "plain"},
        "POST /v1/managers": {"crawler": "plain"},
        "POST /v1/graphs": {"id": "walk", "steps": [STEP]},
        "PUT /v1/schedules/mine": SCHEDULE,
        "PUT /v1/webhooks/mine": WEBHOOK,
    }
    with apis.open() as client:
        for asked, body in bodies.items():
            method, path = asked.split()
            for who, project, status, says in (
                (
                    "b-admin",
                    "a",
                    422,
                    "project: 'a' is not allowed; this token belongs to project 'b', so leave it out",
                ),
                (
                    "admin",
                    "A B",
                    422,
                    "project: 'A B' is not allowed; project names have 1 to 63 characters of a-z",
                ),
                ("admin", "*", 422, "project: '*' is not allowed"),
                ("admin", "b", None, None),
            ):
                answer = apis.ask(client, who, method, path, json=body | {"project": project})
                if status is not None:
                    assert (answer.status_code, answer.json()["detail"][: len(says or "")]) == (
                        status,
                        says,
                    ), asked
                else:
                    assert answer.json()["project"] == "b", asked
        for path in ("runs", "managers", "graphs", "schedules", "webhooks"):
            lists = [
                apis.ask(client, who, "GET", f"/v1/{path}", params=more).json()[path]
                for who, more in (
                    ("b-admin", {}),
                    ("admin", {"project": "b"}),
                    ("admin", {}),
                    ("a-admin", {}),
                )
            ]
            assert [len(one) for one in lists] == [1, 1, 1, 0], path
            refused = apis.ask(client, "b-admin", "GET", f"/v1/{path}", params={"project": "a"})
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "project")
        inner = {"run": {"crawler": "plain", "project": "a"}, "every_s": 3600}
        refused = apis.ask(client, "b-admin", "PUT", "/v1/schedules/inner", json=inner)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "run.project")
        refused = apis.ask(
            client, "b-admin", "POST", "/v1/graphs", json={"steps": [{**STEP, "job": inner["run"]}]}
        )
        assert (refused.status_code, "leave it out" in refused.json()["detail"]) == (422, True)


def test_a_name_of_another_project_is_taken_and_nothing_more_is_told(apis: Apis) -> None:
    """Names belong to the installation, because ids of workflows are made of them.

    A clash shows this, and no more.
    """
    apis.fill("a-admin")
    run = {"crawler": "plain", "request_id": "zebra-request"}
    with apis.open() as client:
        clashes = [
            ("POST", "/v1/runs", run, "Idempotency-Key: request_id 'zebra-request'"),
            ("POST", "/schedule.json", None, "jobid: 'zebra-request' is already used by another request"),
            ("POST", "/v1/managers", {"crawler": "plain", "name": NAME, "flow_id": "zebra-flow"},
             "flow_id: 'zebra-flow' of manager 'zebra'"),
            ("POST", "/v1/graphs", {"id": GRAPH, "steps": [STEP]}, "id: 'zebra-graph'"),
            ("PUT", f"/v1/schedules/{NAME}", SCHEDULE, "name: name 'zebra'"),
            ("PUT", f"/v1/webhooks/{NAME}", WEBHOOK, "name: name 'zebra'"),
        ]  # fmt: skip
        for method, path, body, says in clashes:
            form = (
                {"project": "default", "spider": "plain", "jobid": "zebra-request"}
                if body is None
                else None
            )
            answer = apis.ask(client, "b-admin", method, path, json=body, data=form)
            document = answer.json()
            if body is None:
                assert (document["status"], document["message"]) == (
                    "error",
                    f"{says}; give another one",
                )
                continue
            assert (answer.status_code, document["code"]) == (422, "idempotency_mismatch")
            assert document["detail"] == f"{says} is already taken; choose another one"
            assert document.keys() == {"type", "title", "status", "detail", "code", "errors"}
            (error,) = document["errors"]
            assert f"{error['field']}: {error['message']}" == document["detail"]
        # A deleted name stays with its project, because its past firings and deliveries are still
        # recorded under it.
        assert apis.ask(client, "a-admin", "DELETE", f"/v1/schedules/{NAME}").status_code == 200
        taken = apis.ask(client, "b-admin", "PUT", f"/v1/schedules/{NAME}", json=SCHEDULE)
        assert taken.status_code == 422
        ours = (
            "manager/1/1/0",
            "graph/x/1",
            "schedule/zebra/2026-11-20T12:00:00Z",
            "crawl/plain/zebra-request",
        )
        bodies: dict[str, Any] = {"runs": {"crawler": "plain"}, "managers": {"crawler": "plain"}}
        bodies["graphs"] = {"id": "walk", "steps": [STEP]}
        # Its workflow would be notified of the end.
        told = [(path, "parent", id) for path in bodies for id in ours]
        for path, field, id in [*told, *(("runs", "request_id", id) for id in ours)]:
            refused = apis.ask(
                client, "b-admin", "POST", f"/v1/{path}", json=bodies[path] | {field: id}
            )
            assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field), path


def test_a_run_whose_parent_is_of_another_project_tells_nothing_of_it(apis: Apis) -> None:
    apis.fill("a-admin")
    with apis.open() as client:
        body = {"crawler": "plain", "project": "b", "parent": f"graph/{GRAPH}"}
        run_id = apis.ask(client, "admin", "POST", "/v1/runs", json=body).json()["run_id"]
        apis.harness.claim(run_id)
        apis.harness.end(run_id)
        assert apis.ask(client, "b-admin", "DELETE", f"/v1/runs/{run_id}").status_code == 202


def test_comparisons_and_attention_know_only_the_own_project(apis: Apis) -> None:
    apis.fill("a-admin")
    with apis.open() as client:
        body = {"crawler": "plain", "args": {"page": NAME}}
        run_id = apis.ask(client, "b-admin", "POST", "/v1/runs", json=body).json()["run_id"]
        apis.harness.claim(run_id)
        apis.harness.end(run_id)
        page = apis.ask(client, "b-admin", "GET", f"/runs/{run_id}").text
        assert "The first run of plain" in page
        later = apis.ask(client, "a-admin", "POST", "/v1/runs", json=body).json()["run_id"]
        apis.harness.claim(later)
        apis.harness.end(later, RunStatus.COMPLETED)
        attention = apis.ask(
            client, "b-admin", "GET", "/v1/runs", params={"attention": "true"}
        ).json()["runs"]
        assert [row["run_id"] for row in attention] == [run_id], (
            "the good run of another project helps it nothing"
        )


@pytest.mark.parametrize(
    "path", ["runs/{run}/tasks", "runs/{run}/corrections", "managers/{manager}/jobs"]
)
def test_a_token_of_a_page_opens_no_list_of_another_project(apis: Apis, path: str) -> None:
    apis.fill("a-admin")
    kind = {"tasks": "task", "corrections": "correction", "jobs": "job"}[path.rpartition("/")[2]]
    with apis.open() as client:
        asked = f"/v1/{path.format(run=RUN, manager=MANAGER)}"
        more = {"page_token": encode(kind, 1)}
        assert apis.ask(client, "a-admin", "GET", asked, params=more).status_code == 200
        assert apis.ask(client, "b-admin", "GET", asked, params=more).status_code == 404


def test_metrics_of_a_project_are_its_own_series_and_nothing_of_the_installation(
    apis: Apis,
) -> None:
    apis.fill("a-admin")
    with apis.open() as client:
        own = apis.ask(client, "b-admin", "GET", "/metrics").text
        theirs = apis.ask(client, "a-admin", "GET", "/metrics").text
        every = apis.ask(client, "admin", "GET", "/metrics").text
    assert own == "", "nothing of it is there to count"
    series = [line for line in theirs.splitlines() if not line.startswith("#")]
    assert 'lifecycle_managers{project="a",status="INITIALIZING"} 1.0' in series
    assert all('project="a"' in line for line in series)
    assert {*series, 'lifecycle_managers{project="default",status="INITIALIZING"} 0.0'} <= set(
        every.splitlines()
    )
    assert "process_cpu_seconds_total" in every


# --- streams --------------------------------------------------------------------------------------


@asynccontextmanager
async def listens(
    apis: Apis, url: str, who: str, path: str = "/v1/events", **more: Any
) -> AsyncIterator[Any]:
    headers = {**apis.keys.headers(who), **more.pop("headers", {})}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{url}{path}", headers=headers, **more) as answer,
    ):
        yield answer


async def test_a_stream_has_the_events_of_its_project_wherever_it_begins(apis: Apis) -> None:
    apis.fill("a-admin")
    app = apis.app()
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as client:

        async def start(who: str) -> int:
            answer = await client.post(
                "/v1/runs", json={"crawler": "plain"}, headers=apis.keys.headers(who)
            )
            return int(answer.json()["run_id"])

        newest = apis.harness.store.events.last_event_seq()
        places: list[dict[str, Any]] = [
            {"params": {"after": 0}},
            {"headers": {"Last-Event-ID": str(newest - 1)}},
            {"headers": {"Last-Event-ID": "1"}},
            {"params": {"after": newest}},
        ]
        async with AsyncExitStack() as stack:
            streams = []
            for more in places:
                answer = await stack.enter_async_context(
                    listens(apis, server.url, "b-read", **more)
                )
                streams.append(events(answer))
            every = events(
                await stack.enter_async_context(
                    listens(apis, server.url, "read", params={"after": newest})
                )
            )
            for stream in [*streams, every]:
                assert (await take(stream, 1))[0].event == "hello"
            theirs, mine = await start("a-admin"), await start("b-admin")
            for stream in streams:
                [first] = await take(stream, 1)
                assert (first.data["run_id"], first.data["body"]["project"]) == (mine, "b")
            assert [one.data["run_id"] for one in await take(every, 2)] == [theirs, mine]
        async with listens(apis, server.url, "b-read", params={"run_id": RUN}) as answer:
            assert answer.status_code == 404
        async with listens(
            apis, server.url, "b-read", "/page/events", params={"path": f"/runs/{RUN}"}
        ) as answer:
            stream = events(answer, read=str)
            assert [one.event for one in await take(stream, 2)] == ["hello", "gone"]


async def test_readers_at_one_place_share_no_events_of_another_project(apis: Apis) -> None:
    apis.fill("a-admin")
    store = apis.harness.store
    known = store.events.events_after(0)
    feed = Feed(store.events, store.runs, Metrics(), apis.harness.clock)
    feed._head = 0
    feed._keep(known)
    for project, count in ((None, len(known)), ("b", 0), ("a", len(known)), ("b", 0)):
        with limited(project):
            chunk, place = await feed._next(0, None, True)
        assert (chunk.count(b"\nid: "), place) == (count, known[-1].seq), project


async def test_what_is_kept_is_kept_for_each_project() -> None:
    async def ask() -> str | None:
        return only()

    async def act() -> Outcome:
        return Outcome(f"run of {only()}", "/", True, "stopped")

    kept, once = TtlCache(ask, 3600.0), Once()
    for project in ("a", "b", None, "a"):
        with limited(project):
            assert await kept.own.read() == project
            assert (await once("key of a form", act)).name == f"run of {project}"


async def test_readers_of_two_projects_share_no_screen(apis: Apis) -> None:
    apis.fill("a-admin")
    async with served(apis.app()) as server, AsyncExitStack() as stack:
        for path, has in (("/runs", f"/runs/{RUN}"), ("/pools", "quagga")):
            for who, shown in (("a-read", True), ("b-read", False), ("read", True)):
                answer = await stack.enter_async_context(
                    listens(apis, server.url, who, "/page/events", params={"path": path})
                )
                hello, screen = await take(events(answer, read=str), 2)
                assert (hello.event, has in screen.data) == ("hello", shown)


async def test_an_answer_ends_when_its_token_gets_another_project(apis: Apis) -> None:
    apis.fill("a-admin")
    app, headers, path = apis.app(), apis.keys.headers("a-read"), f"/v1/runs/{RUN}"
    async with served(app) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        waits = asyncio.create_task(client.get(path, params={"wait": 50}, headers=headers))
        await until(lambda: metric(app, "readers", "waits") == 1)
        async with listens(apis, server.url, "a-read") as answer:
            stream = events(answer)
            await take(stream, 1)
            apis.keys.move("a-read", "b")
            assert (await waits).status_code == 401, "it had not begun"
            async with asyncio.timeout(60):
                assert [one async for one in stream] == [], "it ended without another event"
        assert (await client.get(path, headers=headers)).status_code == 404, (
            "it is of the other project from now on"
        )
