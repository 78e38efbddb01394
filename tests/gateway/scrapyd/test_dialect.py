"""scrapyd's API: what its users send, in every form, and what odd clients send."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.scrapyd.gateway import forms, jobs
from crawler_lifecycle.features.scrapyd.gateway.routes import PATHS
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.task_tokens import sign
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.support.examples import examples
from tests.support.run_refs import run_ref

PROJECT = "default"
PLAIN = {"project": PROJECT, "spider": "plain"}


@pytest.fixture
def scrapyd(harness: Harness) -> Iterator[TestClient]:
    with harness.client(harness.new_app(scrapyd=PROJECT)) as client:
        yield client


def ok(answer: httpx.Response) -> dict[str, Any]:
    """Return the response to a call, without the common fields."""
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found.pop("status")) == (200, "ok"), answer.text
    assert found.pop("node_name") == "crawler-lifecycle"
    assert answer.headers["content-type"] == "application/json"
    return found


def error(answer: httpx.Response, status: int = 200) -> str:
    """Return the message with which a call was refused."""
    found = answer.json()
    assert (answer.status_code, found["status"]) == (status, "error"), answer.text
    assert set(found) == {"status", "message", "node_name"}
    assert answer.headers["content-type"] == "application/json"
    return str(found["message"])


def scheduled(client: TestClient, **fields: object) -> str:
    return str(ok(client.post("/schedule.json", data={**PLAIN, **fields}))["jobid"])


def run(harness: Harness, jobid: str) -> RunRow:
    row = harness.store.runs.find_run(jobid)
    assert row is not None
    return row


def count(harness: Harness) -> int:
    return len(harness.store.runs.list_runs())


# --- what there is --------------------------------------------------------------------------------


def test_without_the_setting_there_is_no_dialect(client: TestClient) -> None:
    for path in PATHS:
        assert client.get(path).json()["code"] == "not_found"
        assert client.post(path).json()["code"] == "not_found"


def test_it_is_no_part_of_the_openapi_document(scrapyd: TestClient) -> None:
    routes = [
        route
        for route in cast(FastAPI, scrapyd.app).routes
        if getattr(route, "path", None) in PATHS
    ]
    assert {getattr(route, "include_in_schema", None) for route in routes} == {False}


def test_projects_versions_and_spiders(harness: Harness, scrapyd: TestClient) -> None:
    assert ok(scrapyd.get("/listprojects.json")) == {"projects": [PROJECT]}
    [version] = ok(scrapyd.get("/listversions.json", params={"project": PROJECT}))["versions"]
    assert ok(scrapyd.get("/listversions.json", params={"project": "other"})) == {"versions": []}
    for more in ({}, {"_version": version}, {"_version": ""}):
        assert ok(scrapyd.get("/listspiders.json", params={"project": PROJECT, **more})) == {
            "spiders": ["plain", "strict"]
        }
    told = error(scrapyd.get("/listspiders.json", params={"project": PROJECT, "_version": "r1"}))
    assert (
        told == f"version 'r1' not found; the version is now '{version}': send it, or omit _version"
    )
    assert version in error(scrapyd.post("/schedule.json", data={**PLAIN, "_version": "r1"}))
    assert scheduled(scrapyd, _version=version)
    assert scrapyd.head("/daemonstatus.json").status_code == 200


def test_a_job_from_pending_to_finished(harness: Harness, scrapyd: TestClient) -> None:
    jobid = scheduled(
        scrapyd, jobid="job-1", site="http://x", setting=["DOWNLOAD_DELAY=2", "USER_AGENT=a=b"]
    )
    assert jobid == "job-1"
    row = run(harness, jobid)
    assert (row.crawler, row.trigger, row.request["priority"]) == ("plain", "api", 3)
    assert row.request["args"] == {"site": "http://x"}
    assert row.request["settings"] == {"DOWNLOAD_DELAY": "2", "USER_AGENT": "a=b"}
    assert ok(scrapyd.get("/daemonstatus.json")) == {"pending": 1, "running": 0, "finished": 0}
    assert ok(scrapyd.get("/status.json", params={"job": jobid})) == {"currstate": "pending"}
    assert ok(scrapyd.get("/listjobs.json")) == {
        "pending": [
            {
                **{"id": "job-1", "project": PROJECT, "spider": "plain", "version": None},
                **{"settings": row.request["settings"], "args": row.request["args"]},
            }
        ],
        "running": [],
        "finished": [],
    }
    harness.claim(row.run_id)
    assert ok(scrapyd.post("/cancel.json", data={"project": PROJECT, "job": jobid})) == {
        "prevstate": "pending"
    }
    assert ok(scrapyd.get("/listjobs.json", params={"project": PROJECT}))["running"] == [
        {
            **{"id": "job-1", "project": PROJECT, "spider": "plain", "pid": None},
            **{"start_time": "2026-11-20 12:00:00.000000"},
            **{"log_url": f"/logs/{PROJECT}/plain/job-1.log", "items_url": None},
        }
    ]
    harness.end(row.run_id)
    listed = ok(scrapyd.get("/listjobs.json", params={"project": PROJECT}))
    assert listed == {
        "pending": [],
        "running": [],
        "finished": [
            {
                **{"id": "job-1", "project": PROJECT, "spider": "plain"},
                **{
                    "start_time": "2026-11-20 12:00:00.000000",
                    "end_time": "2026-11-20 12:00:00.000000",
                },
                **{"log_url": f"/logs/{PROJECT}/plain/job-1.log", "items_url": None},
            }
        ],
    }
    assert ok(scrapyd.get("/status.json", params={"job": jobid, "project": PROJECT})) == {
        "currstate": "finished"
    }
    assert ok(scrapyd.get("/daemonstatus.json")) == {"pending": 0, "running": 0, "finished": 1}
    assert ok(scrapyd.post("/cancel.json", data={"project": PROJECT, "job": jobid})) == {
        "prevstate": None
    }


def test_finished_jobs_are_the_newest(
    harness: Harness, scrapyd: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs.FINISHED_MAX == 100
    monkeypatch.setattr(jobs, "FINISHED_MAX", 4)
    for n in range(7):
        scheduled(scrapyd, jobid=f"job-{n}")
        harness.claim(run(harness, f"job-{n}").run_id)
        harness.end(
            run(harness, f"job-{n}").run_id, RunStatus.COMPLETED if n % 2 else RunStatus.FAILED
        )
    finished = ok(scrapyd.get("/listjobs.json"))["finished"]
    assert [job["id"] for job in finished] == [f"job-{n}" for n in (6, 5, 4, 3)]
    assert ok(scrapyd.get("/daemonstatus.json"))["finished"] == 4


def test_jobs_that_came_through_other_apis_are_jobs(harness: Harness, scrapyd: TestClient) -> None:
    key = {"Idempotency-Key": "schedule/nightly/2026-11-20T02:00:00Z"}
    scrapyd.post("/v1/runs", json={"crawler": "plain"}, headers=key)
    [job] = ok(scrapyd.get("/listjobs.json"))["pending"]
    assert (job["id"], job["spider"]) == (key["Idempotency-Key"], "plain")
    assert ok(scrapyd.post("/cancel.json", data={"project": PROJECT, "job": job["id"]})) == {
        "prevstate": "pending"
    }


def test_a_log_is_where_scrapyd_has_it(harness: Harness, scrapyd: TestClient) -> None:
    jobid = scheduled(scrapyd, jobid="a/b c")
    harness.claim(run(harness, jobid).run_id)
    harness.end(run(harness, jobid).run_id)
    [job] = ok(scrapyd.get("/listjobs.json"))["finished"]
    assert job["log_url"] == "/logs/default/plain/a%2Fb%20c.log"
    answer = scrapyd.get(job["log_url"])
    assert "has no log here; no log was stored" in answer.json()["detail"]
    for path in (
        "/logs/default/plain/nobody.log",
        "/logs/default/strict/a%2Fb%20c.log",
        "/logs/x/plain/a%2Fb%20c.log",
    ):
        assert scrapyd.get(path).json()["code"] == "log_not_found"


# --- schedule -------------------------------------------------------------------------------------


def test_a_higher_priority_is_a_lower_number(harness: Harness, scrapyd: TestClient) -> None:
    for priority, ours in [
        ("0", 3),
        ("1", 2),
        ("2.0", 1),
        ("99", 1),
        ("-1", 4),
        ("-1e300", 5),
        ("0.4", 3),
        (" 1 ", 2),
    ]:
        assert run(harness, scheduled(scrapyd, priority=priority)).request["priority"] == ours, (
            priority
        )


def test_fields_come_in_the_address_in_the_body_and_in_a_multipart_form(
    harness: Harness, scrapyd: TestClient
) -> None:
    ok(scrapyd.post("/schedule.json", params={**PLAIN, "jobid": "in-the-address", "page": "ä"}))
    assert run(harness, "in-the-address").request["args"] == {"page": "ä"}
    # The body takes precedence where both have a field, and the first value of a repeated field
    # counts.
    body = "spider=plain&jobid=both&jobid=second&page=%C3%A4+%2B&page=2&setting=DEPTH_LIMIT%3D1&setting=DEPTH_LIMIT=2"
    header = {"content-type": "Application/X-WWW-Form-Urlencoded; charset=UTF-8"}
    ok(
        scrapyd.post(
            f"/schedule.json?project={PROJECT}&spider=strict&jobid=x", content=body, headers=header
        )
    )
    row = run(harness, "both")
    assert (row.crawler, row.request["args"], row.request["settings"]) == (
        *("plain", {"page": "ä +"}),
        {"DEPTH_LIMIT": "2"},
    )
    # httpx sends a multipart form as soon as there is a file, which is a field like any other.
    fields = {**PLAIN, "jobid": "multipart", "setting": ["DEPTH_LIMIT=1", "RETRY_TIMES=2"]}
    files = {"page": ("page.txt", b"line 1\r\n\r\n--not-the-end\r\n", "text/plain")}
    ok(scrapyd.post("/schedule.json", data=fields, files=files))
    row = run(harness, "multipart")
    assert row.request["args"] == {"page": "line 1\r\n\r\n--not-the-end\r\n"}
    assert row.request["settings"] == {"DEPTH_LIMIT": "1", "RETRY_TIMES": "2"}
    raw = "project=default&spider=plain&jobid=raw&page=ä".encode()
    ok(scrapyd.post("/schedule.json", content=raw, headers=header))
    assert run(harness, "raw").request["args"] == {"page": "ä"}


def test_a_job_under_an_id_that_is_taken(harness: Harness, scrapyd: TestClient) -> None:
    for _ in range(3):
        assert scheduled(scrapyd, jobid="nightly", site="http://x") == "nightly"
    assert (count(harness), len(harness.workflows.started)) == (1, 1)
    told = error(
        scrapyd.post("/schedule.json", data={**PLAIN, "jobid": "nightly", "site": "http://y"})
    )
    assert told == "jobid: 'nightly' is already used by another request; give another one"
    row = run(harness, "nightly")
    harness.claim(row.run_id)
    harness.end(row.run_id)
    told = error(
        scrapyd.post("/schedule.json", data={**PLAIN, "jobid": "nightly", "site": "http://x"})
    )
    assert (
        told
        == f"jobid: 'nightly' is already used: run {row.run_id} used it and is FAILED; give another one"
    )
    assert (count(harness), len(harness.workflows.started)) == (1, 1)


def test_what_is_on_record_is_scheduled_while_temporal_is_away(
    harness: Harness, scrapyd: TestClient
) -> None:
    harness.workflows.down = True
    jobid = scheduled(scrapyd)
    assert ok(scrapyd.get("/status.json", params={"job": jobid})) == {"currstate": "pending"}
    assert ok(scrapyd.post("/cancel.json", data={"project": PROJECT, "job": jobid})) == {
        "prevstate": "pending"
    }
    assert run(harness, jobid).stop is not None


REFUSED = [
    ({}, "'project' parameter is required"),
    ({"project": PROJECT}, "'spider' parameter is required"),
    (
        {"project": "x", "spider": "plain"},
        "project 'x' not found; listprojects.json lists the projects",
    ),
    (
        {"project": PROJECT, "spider": "nobody"},
        "spider 'nobody' not found; known: plain, strict",
    ),
    ({"project": PROJECT, "spider": ""}, "spider: ''"),
    ({"project": PROJECT, "spider": "../../etc"}, "spider: '../../etc'"),
    ({"project": PROJECT, "spider": "strict"}, "args.site: missing"),
    (
        {**PLAIN, "depth": "3"},
        "args.depth: unknown argument of crawler 'plain'; known: page, site",
    ),
    ({**PLAIN, "_job": "x"}, "args._job: unknown argument"),
    ({**PLAIN, "": "x"}, "args.: unknown argument"),
    ({**PLAIN, "page": "a\0b"}, "args.page: "),
    ({**PLAIN, "page": "x" * 70_000}, "args: 7"),
    ({**PLAIN, "jobid": ""}, "jobid: ''"),
    ({**PLAIN, "jobid": "a\nb"}, "jobid: "),
    ({**PLAIN, "jobid": "x" * 121}, "jobid: "),
    ({**PLAIN, "priority": "high"}, "priority is invalid: 'high'; give a number"),
    ({**PLAIN, "priority": "nan"}, "priority is invalid: 'nan'"),
    ({**PLAIN, "priority": "1e999"}, "priority is invalid"),
    ({**PLAIN, "setting": "LOG_LEVEL"}, "setting: 'LOG_LEVEL' has no '='; send NAME=VALUE"),
    (
        {**PLAIN, "setting": "ITEM_PIPELINES={}"},
        "settings.ITEM_PIPELINES: '{}' may not be set by a request",
    ),
    ({**PLAIN, "setting": "=1"}, "settings.: '1' may not be set"),
]


def test_what_cannot_be_scheduled_is_told_in_a_sentence(
    harness: Harness, scrapyd: TestClient
) -> None:
    rows: list[tuple[dict[str, str], str]] = REFUSED
    for fields, told in rows:
        assert error(scrapyd.post("/schedule.json", data=fields)).startswith(told), fields
        assert count(harness) == 0


FORM, PARTS = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"


def test_what_is_no_form_is_told_in_a_sentence(harness: Harness, scrapyd: TestClient) -> None:
    for kind, body, told in [
        (FORM, b"project=default&spider=%ff", "spider is invalid: b'\\xff' is not UTF-8"),
        (FORM, b"project=default&spider=plain&page=\xe4", "page is invalid: b'\\xe4' is not UTF-8"),
        (FORM, b"%ff=1", "the name of a field is invalid"),
        (FORM, b"&".join(b"a%d=1" % n for n in range(1001)), "form: more than 1000 fields"),
        (
            "application/json",
            b'{"project": "default"}',
            "Content-Type: 'application/json' is not accepted; send appl",
        ),
        ("", b"project=default", "Content-Type: '' is not accepted"),
        ("multipart/form-data", b"--b--", "Content-Type: has no boundary"),
        (PARTS, b"project=default", "body: the form has no end"),
        (
            PARTS,
            b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n',
            "body: the form has no end",
        ),
        (PARTS, b"--b\r\n\r\n1\r\n--b--", "body: a part of the form has no name"),
        (
            PARTS,
            b'--b\r\nx: form-data; name="a"\r\n\r\n1\r\n--b--',
            "body: a part of the form has no name",
        ),
        (PARTS, b"--b--", "'project' parameter is required"),
        (
            PARTS,
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 1001 + b"--b--",
            "form: more than",
        ),
        (
            PARTS,
            b'--b\r\nContent-Disposition: form-data; name="project"\r\n\r\n\xff\r\n--b--',
            "project is invalid",
        ),
    ]:
        answer = scrapyd.post("/schedule.json", content=body, headers={"content-type": kind})
        assert error(answer).startswith(told), kind
        assert count(harness) == 0


# --- cancel ---------------------------------------------------------------------------------------


def test_cancel_stops_and_kill_forces(harness: Harness, scrapyd: TestClient) -> None:
    for signal, force in (
        *((None, False), ("INT", False), ("TERM", False), ("15", False)),
        *(("KILL", True), ("9", True), ("sigkill", True)),
    ):
        jobid = scheduled(scrapyd)
        row = run(harness, jobid)
        harness.claim(row.run_id)
        harness.deploy(row.run_id)
        cancel = {
            "project": PROJECT,
            "job": jobid,
            **({} if signal is None else {"signal": signal}),
        }
        for before in ("pending", "running"):
            assert ok(scrapyd.get("/status.json", params={"job": jobid})) == {
                "currstate": before
            }, signal
            assert ok(scrapyd.post("/cancel.json", data=cancel)) == {"prevstate": before}
        stop = run(harness, jobid).stop
        assert stop.force is force


def test_what_cannot_be_cancelled(harness: Harness, scrapyd: TestClient) -> None:
    jobid = scheduled(scrapyd)
    cancel = {"project": PROJECT, "job": jobid}
    assert error(scrapyd.post("/cancel.json", data={"job": jobid})).startswith(
        "'project' parameter is required"
    )
    assert error(scrapyd.post("/cancel.json", data={"project": PROJECT})).startswith(
        "'job' parameter is required"
    )
    assert "not found" in error(scrapyd.post("/cancel.json", data={**cancel, "project": "x"}))
    for signal in ("STOP", "USR1", "-9", "KILL ", "0"):
        assert error(scrapyd.post("/cancel.json", data={**cancel, "signal": signal})).startswith(
            "signal: "
        )
    for job in ("nobody", "", "a\0b", "x" * 5000, "\U0001f577"):
        assert ok(scrapyd.post("/cancel.json", data={"project": PROJECT, "job": job})) == {
            "prevstate": None
        }
        assert ok(scrapyd.get("/status.json", params={"job": job})) == {"currstate": None}
    assert run(harness, jobid).stop is None


# --- what is refused for everybody ----------------------------------------------------------------


def test_another_method_is_an_error_as_with_scrapyd(scrapyd: TestClient) -> None:
    for path in sorted(PATHS):
        taken = {"GET", "HEAD"} if "GET" in scrapyd.options(path).headers["allow"] else {"POST"}
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - taken:
            assert f"{method} is not allowed on {path}" in error(scrapyd.request(method, path)), (
                path
            )


def test_what_is_down_keeps_its_status(
    harness: Harness, scrapyd: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> object:
        raise StoreUnavailable("database is locked")

    def broken(*_: object) -> object:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(harness.store.runs, "find_run", down)
    answer = scrapyd.post("/schedule.json", data=PLAIN)
    assert error(answer, 503) == "database is locked"
    assert answer.headers["retry-after"]
    monkeypatch.setattr(harness.store.runs, "find_run", broken)
    assert "secret" not in error(scrapyd.get("/status.json", params={"job": "1"}), 500)
    assert "Too" not in error(scrapyd.get(f"/status.json?job={'x' * 9000}"), 414)


# --- who may --------------------------------------------------------------------------------------


def basic(user: str, word: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def api(harness: Harness, keys: Keys) -> Iterator[TestClient]:
    with harness.client(harness.new_app(entrance=keys.entrance(), scrapyd=PROJECT)) as client:
        yield client


def test_the_token_is_the_password_under_any_name(
    harness: Harness, api: TestClient, keys: Keys
) -> None:
    operate = keys.tokens["operate"]
    for headers in (basic("", operate), basic("scrapyd", operate), keys.headers("operate")):
        jobid = str(ok(api.post("/schedule.json", data=PLAIN, headers=headers))["jobid"])
        assert run(harness, jobid).request["requested_by"] == "the-operate"
    read = basic("x", keys.tokens["read"])
    assert "needs the role operate" in error(
        api.post("/schedule.json", data=PLAIN, headers=read), 403
    )
    for call in ("addversion", "delversion", "delproject"):
        answer = api.post(f"/{call}.json", data=PLAIN, headers=basic("x", operate))
        assert "needs the role admin" in error(answer, 403)
    assert ok(api.get("/listjobs.json", headers=read))
    assert "is not allowed" in error(api.put("/listjobs.json", headers=read))
    assert count(harness) == 3
    assert api.get("/v1/runs", headers=read).status_code == 401, (
        "our own routes take a bearer token alone"
    )
    assert api.get("/logs/default/plain/nobody.log", headers=read).status_code == 404


def test_nobody_else_is_let_in_and_learns_how_to_log_in(harness: Harness, api: TestClient) -> None:
    for shown in [
        *(
            "Basic",
            "Basic ",
            "Basic ***",
            "Basic eDo=",
            "Basic eA==",
            "Basic /////w==",
            "Digest x",
            "",
            "basic eDp5",
        ),
        "Basic " + base64.b64encode(b"crawl_x:").decode(),
    ]:
        for path in sorted(PATHS):
            for method in ("GET", "POST"):
                answer = api.request(
                    method, path, headers={"Authorization": shown} if shown else {}
                )
                if answer.status_code == 429:  # a guess, and too many of them
                    assert error(answer, 429).startswith("Too many wrong tokens"), shown
                    continue
                assert error(answer, 401).startswith("Authorization: ")
                assert answer.headers["www-authenticate"] == 'Basic realm="crawler-lifecycle"'
        assert api.get(
            "/logs/default/plain/x.log", headers={"Authorization": shown}
        ).status_code in (401, 429)
        assert count(harness) == 0


def test_a_crawlers_own_token_may_nothing_of_this(
    harness: Harness, api: TestClient, scrapyd: TestClient
) -> None:
    own = sign(b"k" * 32, run_ref(1))
    with harness.client(
        harness.new_app(entrance=Entrance(task_key=b"k" * 32), scrapyd=PROJECT)
    ) as is_open:
        for client in (api, is_open):
            for headers in (basic("x", own), {"Authorization": f"Bearer {own}"}):
                error(client.post("/schedule.json", data=PLAIN, headers=headers), 403)
                error(client.get("/listjobs.json", headers=headers), 403)
        assert ok(is_open.get("/listjobs.json", headers=basic("who", "ever")))
    assert ok(scrapyd.get("/listjobs.json", headers={"Authorization": "Basic ***"})), (
        "an open gateway asks nobody"
    )


def test_a_foreign_page_schedules_nothing(harness: Harness, scrapyd: TestClient) -> None:
    answer = scrapyd.post("/schedule.json", data=PLAIN, headers={"Origin": "http://evil.example"})
    assert "Origin" in error(answer, 403)
    assert count(harness) == 0


# --- anything at all ------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "project",
        "spider",
        "jobid",
        "job",
        "setting",
        "priority",
        "_version",
        "signal",
        "page",
        "",
        "_job",
        "x\0",
    ]
) | st.text(max_size=5)
VALUES = st.sampled_from(
    [PROJECT, "plain", "strict", "A=B", "LOG_LEVEL=INFO", "KILL", "1", "%", "a/../b"]
) | st.text(max_size=30)
FORMS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
RAW = st.binary(max_size=60) | FORMS.map(
    lambda pairs: "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs).encode()
)
KINDS = st.sampled_from([FORM, PARTS, "multipart/form-data", "text/plain", ""])


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(sorted(PATHS)), st.sampled_from(["GET", "POST", "HEAD", "PUT"]), RAW, RAW, KINDS
)
def test_whatever_comes_is_answered_as_scrapyd_answers(
    harness: Harness,
    scrapyd: TestClient,
    path: str,
    method: str,
    query: bytes,
    body: bytes,
    kind: str,
) -> None:
    before = count(harness)
    url = f"{path}?{quote(query, safe='=&%')}"
    answer = scrapyd.request(method, url, content=body, headers={"content-type": kind})
    assert answer.status_code == 200, answer.text
    if method == "HEAD":
        return
    found = json.loads(answer.content)
    assert found["status"] in ("ok", "error")
    assert found["node_name"]
    assert found["status"] == "ok" or found["message"]
    new = count(harness) - before
    assert new in (0, 1)
    assert not new or (path, found["status"]) == ("/schedule.json", "ok")


@given(FORMS, st.sampled_from(["b", "----WebKitFormBoundary7MA4YWxk", "a'b"]))
def test_a_multipart_form_says_what_an_urlencoded_one_does(
    pairs: list[tuple[str, str]], boundary: str
) -> None:
    pairs = [
        (name, value)
        for name, value in pairs
        if not set(name) & set('"\r\n') and boundary not in value
    ]
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in pairs
    ]
    body = ("".join(parts) + f"--{boundary}--\r\n").encode()
    wanted: dict[str, list[bytes]] = {}
    for name, value in pairs:
        wanted.setdefault(name, []).append(value.encode())
    found = forms.multipart_parts(body, f'multipart/form-data; boundary="{boundary}"')
    got = forms.gathered((part.name, body[part.start : part.end]) for part in found)
    assert got == wanted
