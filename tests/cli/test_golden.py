"""The output of every verb, in every format, compared letter by letter with a stored one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import respx
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.cli.cli_answers import (
    ACCESS,
    ACCESS_REFUSED,
    AHEAD,
    AUDIT,
    COMPLETED,
    CORRECTION,
    CRAWLER,
    DELIVERY,
    DUE,
    DUE_SKIPPED,
    EXPORT,
    FAILED,
    HAPPENED,
    JOB,
    LEFT_OUT,
    MANAGER,
    MANAGER_ENDED,
    PACKAGE,
    PACKAGE_BROKEN,
    PLAN,
    POOL,
    POOL_GONE,
    RESUMED,
    RUN,
    SCHEDULE,
    SCHEDULE_PAUSED,
    SITE,
    SITE_FIGURES,
    SITE_OPEN,
    STOPPED,
    TASKS,
    TOLD,
    TRANSITION,
    WEBHOOK,
)
from tests.cli.cli_support import Crawlctl

RUNS = {"runs": [RUN, FAILED | {"run_id": 6}, COMPLETED | {"run_id": 5}]}
ADDED = {
    "run_id": 7,
    "tasks": [{"task_id": 80, "index": 2}],
    "note": "They are deployed after the next poll.",
}
SUMMARY = {
    "since": "2026-11-13T12:00:00Z",
    "until": "2026-11-20T12:00:00Z",
    "count": 1,
    "worst_s": 1.8,
    "kinds": {"killed": {"count": 1, "worst_s": 1.8, "meaning": "It was ended from outside."}},
    "text": "wrong for at most 1.8 s this week: 1 correction (killed 1)",
}
RESUMPTION = [
    {
        "resumed": False,
        "note": "The saved state is not from a clean stop, so the crawl started from the beginning",
        "tasks": 2,
    },
    {
        "resumed": True,
        "note": "The crawl continued where the earlier attempt was stopped",
        "tasks": 1,
    },
]
EXPORTED = COMPLETED | {"exports": [EXPORT], "deliveries": [DELIVERY]}

_STARTS = {"what": "starts_per_hour", "max": 500, "used": 500, "free_at": "2026-11-20T13:00:00Z"}
QUOTAS = [
    {"kind": "token", "name": "ci", **_STARTS},
    {
        "kind": "pool",
        "name": "shop-a",
        "what": "live_tasks",
        "max": 20,
        "used": None,
        "free_at": None,
    },
]
#: The requests of a verb (method, path, response), by the words of the call.
CALLS: dict[str, list[tuple[str, str, Any]]] = {
    "list": [("GET", "/v1/runs", RUNS)],
    "get": [("GET", "/v1/runs", RUNS)],
    "describe 7": [
        ("GET", "/v1/runs/7", RUN | {"waiting": "2 tasks PENDING: 4 of 4 slots in use"}),
        ("GET", "/v1/runs/7/tasks", {"tasks": TASKS}),
        ("GET", "/v1/runs/7/corrections", {"corrections": [CORRECTION]}),
    ],
    "get 7": [
        (
            "GET",
            "/v1/runs/7",
            STOPPED | {"exports": [EXPORT], "attempt": 2, "resumption": RESUMPTION},
        ),
        ("GET", "/v1/runs/7/tasks", {"tasks": TASKS}),
        ("GET", "/v1/runs/7/corrections", {"corrections": []}),
    ],
    "tasks 7": [("GET", "/v1/runs/7/tasks", {"tasks": TASKS})],
    "tasks add 7 -a letters=a-f": [("GET", "/v1/runs/7", RUN), ("POST", "/v1/runs/7/tasks", ADDED)],
    "timeline 7": [("GET", "/v1/runs/7/timeline", {"timeline": [TRANSITION, HAPPENED]})],
    "corrections": [
        ("GET", "/v1/corrections", {"corrections": [CORRECTION]}),
        ("GET", "/v1/corrections/summary", SUMMARY),
    ],
    "corrections 7 --kind killed": [
        ("GET", "/v1/runs/7/corrections", {"corrections": [CORRECTION]})
    ],
    "logs 7": [("GET", "/v1/runs/7/logs", "first\nlast words\n")],
    "export 7": [("GET", "/v1/runs/7", EXPORTED)],
    "export 7 --resend": [
        ("POST", "/v1/runs/7/export", COMPLETED | {"note": "Event and files are sent again."})
    ],
    "access --kind run --since 24h": [("GET", "/v1/access", {"access": [ACCESS, ACCESS_REFUSED]})],
    "audit": [("POST", "/v1/audit", {"audit_id": "0190-audit", "report": AUDIT, "note": None})],
    "crawler list": [("GET", "/v1/crawlers", {"crawlers": [CRAWLER]})],
    "crawler describe operations": [("GET", "/v1/crawlers", {"crawlers": [CRAWLER]})],
    "pools": [("GET", "/v1/pools", {"pools": [POOL, POOL_GONE]})],
    "quotas --pool shop-a": [("GET", "/v1/quotas", {"quotas": QUOTAS})],
    "start operations --request-id k": [
        (
            "POST",
            "/v1/runs",
            {"run_id": 7, "workflow_id": "crawl/operations/k", "status": "INITIALIZING"},
        )
    ],
    "stop 7 --by eve": [("POST", "/v1/runs/7/stop", RUN | {"status": "STOPPING"})],
    "force-stop 7 --yes": [("POST", "/v1/runs/7/stop", RUN | {"status": "STOPPING"})],
    "resume 7": [("POST", "/v1/runs/7/resume", RESUMED)],
    "poll 7": [("POST", "/v1/runs/7/poll", RUN)],
    "wait 7": [("GET", "/v1/runs/7", FAILED)],
    "watch 7": [
        ("GET", "/v1/runs/7", FAILED | {"tasks": {"SUCCEEDED": 1, "FAILED": 1}}),
        ("GET", "/v1/runs/7/tasks", {"tasks": TASKS}),
        ("GET", "/v1/runs/7/corrections", {"corrections": [CORRECTION]}),
    ],
    "manager list": [
        ("GET", "/v1/managers", {"managers": [MANAGER, MANAGER_ENDED | {"manager_id": 2}]})
    ],
    "manager describe 3 --jobs all": [
        ("GET", "/v1/managers/3", MANAGER),
        ("GET", "/v1/managers/3/jobs", {"jobs": [JOB, LEFT_OUT]}),
    ],
    "manager start --crawler operations --flow nightly-7": [
        (
            "POST",
            "/v1/managers",
            MANAGER | {"status": "INITIALIZING", "note": "No user-code worker has registered yet."},
        )
    ],
    "manager stop 3 --by eve": [
        ("POST", "/v1/managers/3/stop", MANAGER | {"status": "STOPPING", "note": None})
    ],
    "manager set-limit 3 40": [
        ("POST", "/v1/managers/3/limit", MANAGER | {"cap": 40, "note": None})
    ],
    "manager add 3 -a letters=a-f": [
        (
            "POST",
            "/v1/managers/3/jobs",
            {"manager_id": 3, "jobs": 1, "new": 0, "sealed": False, "note": None},
        )
    ],
    "manager wait 3": [("GET", "/v1/managers/3", MANAGER_ENDED)],
    "manager watch 3": [("GET", "/v1/managers/3", MANAGER_ENDED)],
    "schedule list": [("GET", "/v1/schedules", {"schedules": [SCHEDULE, SCHEDULE_PAUSED]})],
    "schedule describe nightly": [("GET", "/v1/schedules/nightly", SCHEDULE | AHEAD)],
    "schedule firings nightly": [
        ("GET", "/v1/schedules/nightly/firings", {"firings": [DUE_SKIPPED, DUE]})
    ],
    "manager plan": [("GET", "/v1/user-code", {"user_code": [PLAN], "note": None})],
    "webhook list": [("GET", "/v1/webhooks", {"webhooks": [WEBHOOK]})],
    "webhook describe shop": [("GET", "/v1/webhooks/shop", WEBHOOK)],
    "webhook update shop --tag nightly --by eve": [
        ("GET", "/v1/webhooks/shop", WEBHOOK),
        ("PUT", "/v1/webhooks/shop", WEBHOOK | {"note": "It is paused: resume it."}),
    ],
    "webhook test shop --by eve": [
        ("POST", "/v1/webhooks/shop/test", {"seq": 42, "note": None}),
        ("GET", "/v1/webhooks/shop/deliveries", {"deliveries": [TOLD]}),
    ],
    "webhook resume shop --skip": [
        ("POST", "/v1/webhooks/shop/resume", WEBHOOK | {"state": "active", "note": None})
    ],
    "package list": [("GET", "/v1/packages", {"packages": [PACKAGE]})],
    "package versions shop": [
        ("GET", "/v1/packages/shop", {"versions": [PACKAGE, PACKAGE_BROKEN]})
    ],
    "package use shop 2026-11-20 --by eve": [
        ("POST", "/v1/packages/shop/use", PACKAGE | {"told": "It is now current."})
    ],
    "package delete shop": [("DELETE", "/v1/packages/shop", {"package": "shop", "versions": 2})],
    "pool set shop-a --max 20 --weight 2.5 --reserved 2 --by eve": [
        ("PATCH", "/v1/pools/shop-a", POOL | {"note": "max: 10 → 20"})
    ],
    "pool delete shop-a": [("DELETE", "/v1/pools/shop-a", POOL | {"note": "deleted"})],
    "site list --show closed": [("GET", "/v1/sites", {"sites": [SITE, SITE_OPEN]})],
    "site show shop.example": [("GET", "/v1/sites/shop.example", SITE | SITE_FIGURES)],
    "site set shop.example --requests-per-s 10 --connections 4 --not 1-10 --by eve": [
        ("PUT", "/v1/sites/shop.example", SITE | {"note": "requests_per_s: none → 10"})
    ],
    "site close shop.example --time 30m --reason sale --by eve": [
        ("POST", "/v1/sites/shop.example/close", SITE | {"note": None})
    ],
    "site open shop.example --by eve": [
        ("POST", "/v1/sites/shop.example/open", SITE_OPEN | {"note": None})
    ],
    "site delete shop.example": [
        ("DELETE", "/v1/sites/shop.example", SITE_OPEN | {"note": "limits removed"})
    ],
    "tasks 7 --watch": [
        ("GET", "/v1/runs/7", FAILED),
        ("GET", "/v1/runs/7/tasks", {"tasks": TASKS}),
    ],
}
FORMATS = ("table", "wide", "json", "jsonl", "name", "yaml")


@pytest.mark.parametrize("words", CALLS)
def test_output(
    gateway: respx.MockRouter, crawlctl: Crawlctl, snapshot: SnapshotAssertion, words: str
) -> None:
    """Compare all formats; repeated output is only named, and a document is on one line."""
    for method, path, answer in CALLS[words]:
        route = gateway.request(method, path)
        if isinstance(answer, str):
            route.respond(text=answer)
        else:
            route.respond(json=answer)
    said = {form: crawlctl(*words.split(), "-o", form) for form in FORMATS}
    assert yaml.safe_load(said["yaml"].out) == said["json"].json
    shown: dict[str, str] = {}
    for form in FORMATS[:-1]:
        shown[form] = (
            json.dumps(said[form].json, ensure_ascii=False) + "\n"
            if form == "json"
            else said[form].out
        )
    shown |= {f"stderr of {form}": one.err for form, one in said.items()}
    first = {text: name for name, text in reversed(shown.items())}
    ends = ", ".join(map(str, dict.fromkeys(one.code for one in said.values())))
    parts = [f"--- {name}\n{text}" for name, text in shown.items() if first[text] == name]
    same = [
        f"--- {name}: as {first[text]}\n"
        for name, text in shown.items()
        if first[text] != name and text
    ]
    assert (
        "".join([f"exit {ends}\n", *parts, *(one for one in same if "stderr" not in one)])
        == snapshot
    )


def test_documents_as_they_are_written(
    gateway: respx.MockRouter, crawlctl: Crawlctl, snapshot: SnapshotAssertion
) -> None:
    gateway.post("/v1/runs/7/poll").respond(json=RUN)
    assert (
        crawlctl("poll", "7", "-o", "json").out + crawlctl("poll", "7", "-o", "yaml").out
        == snapshot
    )


def test_times_as_they_are(
    gateway: respx.MockRouter, crawlctl: Crawlctl, snapshot: SnapshotAssertion
) -> None:
    gateway.get("/v1/runs").respond(json=RUNS)
    assert crawlctl("list", "--time-format", "iso").out == snapshot


def test_help(
    crawlctl: Crawlctl, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert crawlctl("--help").out == snapshot
