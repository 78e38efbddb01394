"""What holds for every page: access, size, headers, and that no text is ever interpreted as code."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.bounds import travels
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.gateway.access.limits import Quota
from crawler_lifecycle.gateway.access.operations import ACCESS, Operations
from crawler_lifecycle.gateway.access.tokens import Role
from crawler_lifecycle.gateway.ui.middleware import POLICY
from crawler_lifecycle.gateway.ui.parts import rendering
from crawler_lifecycle.gateway.ui.parts.rendering import assets
from crawler_lifecycle.gateway.ui.runs import commands as runs
from crawler_lifecycle.store.columns import Words
from crawler_lifecycle.store.tables import metadata
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.test_security import HOSTILE
from tests.gateway.ui.conftest import as_browser, followed
from tests.gateway.ui.fleet_scene import TROUBLES
from tests.support.fakes.logs import FakeLogs
from tests.support.filling import fill_runs
from tests.support.issuer import SIGN_IN

KEY = "0" * 32
#: Addresses with run 1.
OF_RUN_1 = re.compile(r"(/runs/|like=)1\b")
#: The address of each page operation. Every page operation has its line here.
PATHS: dict[str, str] = {
    "getAsset": f"/page/assets/{assets()['page.css'].name}",
    "showLogin": "/login",
    "logIn": "/login",
    "logOut": "/logout",
    "showFleet": "/",
    "showParts": "/parts",
    "showSearch": "/search?q=nightly",
    "showRuns": "/runs",
    "showRun": "/runs/1",
    "showTasks": "/runs/1/tasks",
    "showTimeline": "/runs/1/timeline",
    "showRequest": "/runs/1/request",
    "showLog": "/runs/1/log",
    "fetchLog": "/runs/1/log/whole",
    "showFiles": "/runs/1/files",
    "showFile": "/runs/1/file?name=task-0/items.jsonl",
    "showItems": "/runs/1/items?name=task-0/items.jsonl",
    "showCrawlers": "/crawlers",
    "showCrawler": "/crawlers/plain",
    "showCrawlerRuns": "/crawlers/plain/runs",
    "pressCrawlerRuns": "/crawlers/plain/runs",
    "showCrawlerVersions": "/crawlers/plain/versions",
    "showPackages": "/packages",
    "showPackage": "/packages/shop",
    "pressCrawlerVersions": "/crawlers/plain/versions",
    "showCrawlerSchedules": "/crawlers/plain/schedules",
    "showCrawlerTab": "/crawlers/plain/failures",
    "showPools": "/pools",
    "showSites": "/sites",
    "showSite": "/sites/shop.example",
    "showSiteBlocks": "/sites/shop.example/blocks",
    "showSiteRuns": "/sites/shop.example/runs",
    "showSiteLimits": "/sites/shop.example/limits",
    "showPutSite": "/sites/new",
    "pressPutSite": "/sites/new",
    "pressSite": "/sites/shop.example",
    "showIncidents": "/incidents?show=closed",
    "showIncident": "/incidents/1",
    "pressIncident": "/incidents/1",
    "pressIncidents": "/incidents",
    "showAccess": "/access",
    "showCorrections": "/corrections",
    "showAudit": "/audit",
    "pressAudit": "/audit",
    "showManagers": "/managers",
    "showManager": "/managers/1",
    "showManagerJobs": "/managers/1/jobs",
    "showManagerRuns": "/managers/1/runs",
    "pressManagerRuns": "/managers/1/runs",
    "pressManager": "/managers/1",
    "pressManagers": "/managers",
    "showGraphs": "/graphs",
    "showGraph": "/graphs/nightly",
    "showGraphSteps": "/graphs/nightly/steps",
    "pressGraphSteps": "/graphs/nightly/steps",
    "showGraphRuns": "/graphs/nightly/runs",
    "pressGraphRuns": "/graphs/nightly/runs",
    "pressGraph": "/graphs/nightly",
    "pressGraphs": "/graphs",
    "showSchedules": "/schedules",
    "showSchedule": "/schedules/nightly",
    "showDueTimes": "/schedules/nightly/due-times",
    "showBackfill": "/schedules/nightly/backfill",
    "showScheduleDefinition": "/schedules/nightly/definition",
    "showPutSchedule": "/schedules/new?name=nightly",
    "pressPutSchedule": "/schedules/new",
    "pressSchedule": "/schedules/nightly",
    "showWebhooks": "/webhooks",
    "showWebhook": "/webhooks/portal",
    "showDeliveries": "/webhooks/portal/deliveries",
    "showWebhookDefinition": "/webhooks/portal/definition",
    "showPutWebhook": "/webhooks/new?name=portal",
    "pressPutWebhook": "/webhooks/new",
    "pressWebhook": "/webhooks/portal",
    "showStart": "/runs/new?like=1",
    "showStartManager": "/start/manager",
    "pressStartManager": "/start/manager",
    "showStartGraph": "/start/graph?plan=json",
    "pressStartGraph": "/start/graph",
    "pressStart": "/runs/new",
    "pressRuns": "/runs",
    "pressExport": "/runs/1/export",
    "streamPage": "/page/events?path=/runs/1",
    "openChannel": f"/page/streams/{KEY}",
    "joinChannel": f"/page/streams/{KEY}/1?path=/page/events",
    "leaveChannel": f"/page/streams/{KEY}/1/end",
}
SCHEDULE = {"run": {"crawler": "plain"}, "every_s": 3600}
WEBHOOK: dict[str, Any] = {"url": "https://hooks.example.com/x", "secrets": ["env:CRAWL_HOOK"]}
GRAPH = {"id": "nightly", "steps": [{"path": "walk", "kind": "crawl", "job": {"crawler": "plain"}}]}
FORMS: dict[str, dict[str, Any]] = {
    "pressAudit": {"key": KEY},
    "pressManager": {"key": KEY, "do": "pause", "attempt": "1"},
    "pressManagers": {"key": KEY, "do": "pause", "manager": "1.1"},
    "pressManagerRuns": {"key": KEY, "do": "poll", "run": "1.1"},
    "pressGraph": {"key": KEY, "do": "cancel", "attempt": "1"},
    "pressGraphSteps": {"key": KEY, "do": "cancel", "step": "walk.1"},
    "pressGraphRuns": {"key": KEY, "do": "poll", "run": "1.1"},
    "pressGraphs": {"key": KEY, "do": "stop", "graph": "nightly.1"},
    "pressPutSchedule": {
        "name": "nightly",
        "revision": "1",
        "kind": "run",
        "crawler": "plain",
        "every_s": "3600",
    },
    "pressSchedule": {"key": KEY, "do": "pause", "reason": "why"},
    "pressIncident": {"key": KEY, "do": "assign", "assignee": "anna"},
    "pressIncidents": {"key": KEY, "do": "mute", "for_s": "3600", "incident": "1.1"},
    "pressPutWebhook": {
        "name": "portal",
        "revision": "1",
        "url": WEBHOOK["url"],
        "secret": "env:CRAWL_HOOK",
    },
    "pressWebhook": {"key": KEY, "do": "pause", "reason": "why"},
    "pressPutSite": {"site": "shop.example", "tasks": "2", "hours": "22:00-06:00"},
    "pressSite": {"key": KEY, "do": "close", "for_s": "600", "reason": "why"},
    "logIn": {"token": "crawl_wrong"},
    "pressStart": {"key": KEY, "crawler": "plain"},
    "pressStartManager": {"key": KEY, "plan": BUILT_IN, "opt-spider": "plain"},
    "pressStartGraph": {"key": KEY, "plan": "json", "steps": json.dumps(GRAPH["steps"])},
    "pressRuns": {"key": KEY, "do": "poll", "run": "1.1"},
    "pressCrawlerRuns": {"key": KEY, "do": "poll", "run": "1.1", "stay": "true"},
    "pressCrawlerVersions": {"version": "1"},
}
STREAMS = {"streamPage", "openChannel"}
PAGES = [name for name in ACCESS if ACCESS[name].page and name not in SIGN_IN | STREAMS]


def ask_by_form(name: str) -> bool:
    return name.startswith("press") or name in ("logIn", "logOut")


def ask(client: TestClient, name: str, **headers: str) -> Any:
    if ask_by_form(name):
        return client.post(PATHS[name], data=FORMS.get(name, {}), headers=headers)
    return client.get(PATHS[name], headers=headers)


def things(client: TestClient, text: str = "") -> None:
    """One manager, graph, schedule and webhook, with the text wherever an outsider may write one."""
    manager = {
        "crawler": "plain",
        "flow_id": "f",
        "tags": [f"x{text}"],
        "requested_by": f"x{text}"[:60],
    }
    client.post("/v1/managers", json=manager)
    client.post("/v1/managers/1/jobs", json={"jobs": [{"spider_args": {"page": f"x{text}"}}]})
    client.post("/v1/managers/1/stop", json={"reason": f"x{text}"})
    client.post(
        "/v1/graphs", json={**GRAPH, "name": f"x{text}"[:60], "requested_by": f"x{text}"[:60]}
    )
    schedule = {
        "run": {"crawler": "plain", "args": {"page": f"x{text}"}, "tags": [f"x{text}"]},
        "every_s": 3600,
    }
    client.put("/v1/schedules/nightly", json=schedule)
    client.post("/v1/schedules/nightly/pause", json={"reason": f"x{text}"})
    client.post("/v1/schedules/nightly/trigger", json={"requested_by": f"x{text}"[:60]})
    client.put(
        "/v1/webhooks/portal",
        json={**WEBHOOK, "crawlers": [f"x{text}"[:60].replace("\r\n", " ").strip()]},
    )
    client.post("/v1/webhooks/portal/pause", json={"reason": f"x{text}"})
    who = f"x{text}"[:60]
    client.put("/v1/sites/shop.example", json={"tasks": 2, "requested_by": who})
    client.post(
        "/v1/sites/shop.example/close",
        json={"for_s": 600, "reason": f"x{text}"[:200], "requested_by": who},
    )


@pytest.fixture
def logs() -> FakeLogs:
    return FakeLogs()


@pytest.fixture
def started(harness: Harness, keys: Keys, logs: FakeLogs) -> Iterator[TestClient]:
    """A gateway with tokens and one run."""
    with harness.client() as client:
        assert client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"] == 1
        things(client)
    harness.claim(1)
    harness.deploy(1)
    logs.write(b"one line\n", 1)
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None), logs=logs)) as client:
        yield as_browser(client)


def test_every_page_operation_has_an_address_here(harness: Harness) -> None:
    assert set(PATHS) | SIGN_IN == {name for name, access in ACCESS.items() if access.page}
    known = {
        name
        for name in PATHS
        if Operations(harness.app).of("GET", PATHS[name].partition("?")[0])[0] == name
    }
    known |= {name for name in PATHS if Operations(harness.app).of("POST", PATHS[name])[0] == name}
    assert known == set(PATHS)


def test_the_path_of_every_noun_leads_to_a_list(browser: TestClient) -> None:
    pages = [path for path in PATHS.values() if not path.startswith(("/page/", "/start/"))]
    nouns = {path.split("/")[1].partition("?")[0] for path in pages}
    assert {"runs", "crawlers", "packages", "sites", "incidents"} <= nouns
    for noun in nouns - {"", "logout"}:
        answer = followed(browser, browser.get(f"/{noun}"))
        assert answer.status_code in (200, 307), noun


def test_every_kind_of_incidents_opens_a_page_about_its_subject(harness: Harness) -> None:
    subjects = [(kind, subject) for kind, subject, _, _ in TROUBLES]
    subjects += [("canary_rejected", "packages/shop"), ("canary_rejected", "crawlers/press")]
    subjects += [("site_closed", "sites/shop.example"), ("workflow_stuck", "parts/workflows")]
    subjects += [("schedule_skipped", "schedules/a"), ("schedule_unsynced", "schedules/b")]
    assert {kind for kind, _ in subjects} == INCIDENT_KINDS.keys()
    for kind, subject in subjects:
        operation = Operations(harness.app).of("GET", INCIDENT_KINDS[kind].path(subject))[0]
        assert operation not in (None, "showFleet", "showCrawlers"), (kind, subject)


def test_who_may(started: TestClient, keys: Keys) -> None:
    logins = {}
    for role in Role:
        started.cookies.clear()
        started.post("/login", data={"token": keys.tokens[role]})
        logins[role] = dict(started.cookies)
    for name in PAGES:
        needed = ACCESS[name].role
        started.cookies.clear()
        if needed is None:
            assert ask(started, name).status_code in (200, 303, 401), name
            continue
        refused = ask(started, name)
        led = refused.status_code == 303 and refused.headers["location"].startswith("/login")
        assert refused.status_code == 401 if name.startswith("press") else led, name
        programme = ask(started, name, Accept="*/*")
        assert (programme.status_code, programme.json()["code"]) == (401, "unauthenticated"), name
        assert ask(started, name, Authorization="Bearer crawl_wrong").status_code in (
            303,
            401,
            429,
        ), name
        for role in Role:
            started.cookies.clear()
            started.cookies.update(logins[role])
            answer = ask(started, name)
            assert (answer.status_code == 403) is not role.covers(needed), (name, role, answer.text)
            assert answer.status_code not in (401, 429, 500), (name, role, answer.text)


def test_a_stream_is_refused_before_it_begins(started: TestClient) -> None:
    answer = started.get(PATHS["streamPage"], headers={"Accept": "text/html, text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")


def test_what_a_role_may_not_do_is_not_shown(started: TestClient, keys: Keys) -> None:
    for role, shown in (("read", False), ("operate", True)):
        started.cookies.clear()
        started.post("/login", data={"token": keys.tokens[role]})
        for name in ("showRuns", "showRun"):
            text = ask(started, name).text
            assert (">Stop</button>" in text) is shown, (role, name)
            assert ("/runs/new" in text) is shown


def test_limits_hold_for_pages_too(harness: Harness, keys: Keys) -> None:
    quota = Quota(max_reads_per_s=0.001, max_writes_per_s=0.001)
    with harness.client(harness.new_app(entrance=keys.entrance(quota=quota))) as client:
        as_browser(client).post("/login", data={"token": keys.tokens["operate"]})
        assert client.get("/").status_code == 200
        over = client.get("/")
        assert over.status_code == 429
        assert int(over.headers["retry-after"]) > 0
        assert "read requests" in over.text
        assert over.headers["content-type"].startswith("text/html")


def test_every_answer_has_the_policy(started: TestClient, keys: Keys) -> None:
    for path in (
        *PATHS.values(),
        "/nope",
        "/runs/77",
        "/runs?status=x",
        "/page/assets/x",
        "/v1/runs",
    ):
        for headers in ({}, keys.headers("read")):
            if path in {PATHS[name] for name in STREAMS} and headers:
                continue  # it does not end
            found = started.get(path, headers=headers).headers
            assert found["content-security-policy"] == POLICY, path
            assert found["referrer-policy"] == "same-origin", path
            assert found["cross-origin-opener-policy"] == "same-origin", path
            assert found["cross-origin-resource-policy"] == "same-origin", path
            assert found["x-content-type-options"] == "nosniff", path


# --- files ----------------------------------------------------------------------------------------


def test_assets_are_a_fixed_list_and_kept_for_ever(browser: TestClient) -> None:
    for asset in assets().values():
        answer = browser.get(f"/page/assets/{asset.name}")
        assert (answer.status_code, answer.content) == (200, asset.plain)
        assert "immutable" in answer.headers["cache-control"]
        bare = browser.get(f"/page/assets/{asset.name}", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in bare.headers
        assert bare.content == asset.plain
    for wrong in ("page.css", "..%2fassets.py", "%2e%2e/assets.py", "VENDORED.md", "x" * 300):
        assert browser.get(f"/page/assets/{wrong}").status_code == 404
    page = browser.get("/").text
    linked = re.findall(r'/page/assets/[^" ]+', page)
    assert len(linked) >= 5
    assert {browser.get(path).status_code for path in linked} == {200}


def test_a_first_visit_and_a_list_of_50_runs_are_small(
    harness: Harness, browser: TestClient
) -> None:
    with harness.store.database.writer.begin() as connection:
        fill_runs(connection, 50)
    page = browser.get("/runs")
    assert page.text.count('<tr id="run-') == 50
    of_list = int(page.headers["content-length"])
    names = set(re.findall(r'/page/assets/([^"]+)"', page.text))
    of_files = sum(len(a.zipped) for a in assets().values() if a.name in names)
    assert of_list <= 12 * 1024
    assert of_list + of_files <= 60 * 1024


# --- texts ----------------------------------------------------------------------------------------

TEXTS = [
    *(text for text in HOSTILE if set("<\r") & set(text)),
    # Characters and marks that can share a text, because none hides another.
    "".join(text for text in HOSTILE if set("{\u202e") & set(text))
    + "\u2028\u2029\x85\x0b\x1b[31m",
    'javascript:alert(1)"><script>alert(1)</script>',
    "=HYPERLINK(1)' onmouseover='alert(1)",
    "</textarea></pre></title><svg onload=alert(1)>",
    "&lt;b&gt; &amp;quot; &#x3c;]]><!-- --!> <!DOCTYPE x>",
]
#: Columns with text from outside whose type does not show this; ``Words`` does.
COLUMNS = (
    *(
        ("run_history", "flow_id"),
        ("run_history", "parent"),
        ("manager", "parent"),
        ("graph", "parent"),
    ),
    *(
        ("manager", "plan"),
        ("manager", "flow_id"),
        ("graph_step", "path"),
        ("audit_finding", "workflow_id"),
    ),
    *(("outbox_delivery", "sink"), ("task_log", "log_tail"), ("manager_log", "log_tail")),
)
WRITTEN = [
    *COLUMNS,
    *((t.name, c.name) for t in metadata.tables.values() for c in t.c if isinstance(c.type, Words)),
]
DOCUMENTS = (
    *(("correction", "evidence"), ("audit_finding", "evidence")),
    *(("task_stats", "stats"), ("task_history", "args")),
)
AT = "2026-11-20 12:00:00.000000"


def write_everywhere(file: Path, run_id: int, text: str) -> None:
    """Put this text wherever a crawler, a user or another system may have written one, in a row of
    each kind.
    """
    rows: list[dict[str, Any]] = [
        {
            "": "correction",
            "run_id": run_id,
            "task_id": 1,
            "attempt": 1,
            "kind": "killed",
            "believed": "RUNNING",
        }
        | {"truth": "FAILED", "found_by": "look", "evidence": "{}", "created_at": AT},
        {"": "export_record", "run_id": run_id, "attempt": 1, "status": "exported", "at": AT},
        {
            "": "audit_finding",
            "subject": f"run/{run_id}",
            "kind": "stale",
            "status": "open",
            "run_id": run_id,
        }
        | {"detail": "x", "evidence": "{}", "first_seen": AT, "last_seen": AT},
        {"": "task_log", "task_id": 1, "log_tail": "x"},
        {"": "task_stats", "task_id": 1, "stats": "{}"},
        {"": "manager_log", "manager_id": 1, "log_tail": "x"},
    ]
    with sqlite_files.connect(file) as database:
        for row in rows:
            table = row.pop("")
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            database.execute(
                f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", list(row.values())
            )
        for seq, webhook in database.execute(
            "SELECT e.seq, w.webhook_id FROM outbox_event e, webhook w LIMIT 3"
        ).fetchall():
            told = (seq, f"webhook/{webhook}", "failed", 1)
            database.execute(
                "INSERT OR IGNORE INTO outbox_delivery (seq, sink, status, tries) VALUES (?, ?, ?, ?)",
                told,
            )
        # It takes precedence over the text of an older build.
        database.execute("UPDATE task_log SET compressed = NULL")
        for table, column in WRITTEN:
            database.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (f"x{text}",))
        for table, column in DOCUMENTS:
            database.execute(
                f"UPDATE {table} SET {column} = ?", (json.dumps({"page": f"x{text}"}),)
            )
        database.execute("UPDATE graph_step SET errors = ?", (json.dumps([{"error": f"x{text}"}]),))
        database.execute("UPDATE webhook SET failing_since = ?, paused_at = NULL", (AT,))


def test_no_template_takes_a_text_for_safe() -> None:
    """Text from outside is escaped, and quoted in attributes."""
    for file in (Path(rendering.__file__).parent / "templates").glob("*.html"):
        text = file.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup", text), file.name
        inside = re.findall(r"<[a-z][^<>]*?\w=\{\{", re.sub(r'"[^"]*"', '""', text))
        assert not inside, (file.name, inside)


class Skeleton(HTMLParser):
    """The tags of a page and the names of their attributes, without any text, and the targets of
    its links.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.links += [
            value or "" for name, value in attrs if name in ("href", "src", "action", "formaction")
        ]


def _skeletons(
    harness: Harness, file: Path, client: TestClient, logs: FakeLogs, text: str
) -> dict[str, Skeleton]:
    """Return each page with this text wherever an outsider may write."""
    logs.write(text.encode() + b"\n", 1)
    line = text.replace("\r\n", " ")  # text with several lines is edited in a larger field
    body = {
        "crawler": "plain",
        "args": {"page": f"x{line}", "site": line},
        "tasks": [{"args": {}}] * 2,
    }
    fits = "".join(c for c in text if travels(c))  # other characters are refused by the gateway
    body["tags"] = [f"x{fits}"]
    run_id = client.post("/v1/runs", json=body | {"requested_by": f"x{fits}"[:60]}).json()["run_id"]
    logs.write(text.encode() + b"\n", run_id)
    harness.claim(run_id)
    harness.deploy(run_id)
    client.post(f"/v1/runs/{run_id}/stop", json={"reason": f"x{text}"})
    things(client, text)
    write_everywhere(file, run_id, text)
    shown = [
        PATHS[name]
        for name in PATHS
        if name.startswith("show") and PATHS[name] not in ("/login", "/crawlers")
    ]
    paths = {path: OF_RUN_1.sub(rf"\g<1>{run_id}", path) for path in (*shown, "/runs?page_size=1")}
    found = {where: Skeleton(client.get(path).text) for where, path in paths.items()}
    for name in ("crawler", "outcome", "flow_id", "tag", "status", "page_token", "nonsense"):
        found[f"/runs?{name}"] = Skeleton(client.get("/runs", params={name: f"x{text}"}).text)
    form = {
        "key": uuid.uuid4().hex,
        "crawler": "plain",
        "tags": fits,
        "settings": text.replace("=", ""),
    }
    form["arg.nonsense"] = f"x{line}"
    found["start"] = Skeleton(client.post("/runs/new", data=form).text)
    found["press"] = Skeleton(
        client.post("/runs", data={"key": KEY, "do": f"x{text}", "run": "1.1"}).text
    )
    return found


def test_no_text_is_ever_code(
    harness: Harness, logs: FakeLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each text, every page has the same tags, attributes and kinds of links as with a
    harmless one.
    """
    monkeypatch.setattr(runs, "VALUES_WAIT_S", 60.0)  # a slow machine has no other page
    file = tmp_path / "runs.db"
    with harness.client(harness.new_app(logs=logs)) as client:
        as_browser(client)
        _skeletons(harness, file, client, logs, "an older run")
        harmless = _skeletons(harness, file, client, logs, "harmless")
        assert sum(len(page.tags) for page in harmless.values()) > 500
        for text in TEXTS:
            for where, page in _skeletons(harness, file, client, logs, text).items():
                lists = where in PATHS.values() and not OF_RUN_1.search(where)
                lists |= where == PATHS["showRun"]  # it has a chart of all earlier runs
                # A list that has grown since: nothing new of its kind.
                if lists or where.startswith("/runs?"):
                    assert set(page.tags) <= set(harmless[where].tags), (text, where)
                else:
                    assert page.tags == harmless[where].tags, (text, where)
                assert all(re.match(r"#main$|/(?!/)", link) for link in page.links), (text, where)


FIELDS = (
    *("status", "page_token", "page_size", "search", "kind", "since"),
    *("state", "path", "task", "name", "like", "all"),
)
GARBAGE = ("", "\u202e<b>'\"", "9" * 30, "-1", "2026-11-20T00:00:00Z")


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a fifth", "whole"]
)
def test_garbage_never_breaks_a_page(harness: Harness, keys: Keys, whole: bool) -> None:
    """Whatever an address or a form contains, the response is a page or a message with the fix, and
    never a bug of ours.

    The effect of a text depends on how its field is read, so each page meets each field and each
    text, and the texts take turns in the fields.
    """
    with harness.client(harness.new_app(entrance=keys.entrance(quota=None))) as client:
        client.post("/v1/runs", json={"crawler": "plain"}, headers=keys.headers("admin"))
        client.headers.update(keys.headers("admin"))
        things(client)
        as_browser(client)
        for turn, name in enumerate(PAGES):
            form, (path, _, asked) = FORMS.get(name, {}), PATHS[name].partition("?")
            before = dict(pair.split("=") for pair in asked.split("&") if pair)
            fields = (*form, "colour") if ask_by_form(name) else FIELDS
            for place, (field, text) in enumerate(product(fields, GARBAGE)):
                if (
                    not whole
                    and not ask_by_form(name)
                    and (place // len(GARBAGE) + turn - place) % len(GARBAGE)
                ):
                    continue
                if ask_by_form(name):
                    answer = client.post(path, data={**form, field: text})
                else:
                    answer = client.get(path, params={**before, field: text})
                assert answer.status_code < 500 or answer.status_code == 503, (
                    name,
                    field,
                    text,
                    answer.text,
                )
