"""The doctor: what each finding means, that none hides another, and that checks change nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceResponse,
    DescribeTaskQueueResponse,
    ListWorkersResponse,
)
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.doctor import report, sources
from crawler_lifecycle.cli.doctor.checks import database, environment, temporal
from crawler_lifecycle.cli.doctor.report import Check, Context, Line
from crawler_lifecycle.cli.machine import start_time
from crawler_lifecycle.clusters.kubernetes.kind import KubernetesKind
from crawler_lifecycle.compose import SERVED_BY
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.pools import Pool
from crawler_lifecycle.gateway.access.tokens import new_token
from crawler_lifecycle.redaction import Redactor
from crawler_lifecycle.settings import Settings, variables
from crawler_lifecycle.store import engine
from crawler_lifecycle.store.migrations.schema_version import head_version, upgrade
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.temporal.operator import task_queues
from crawler_lifecycle.temporal.operator.server import Server
from crawler_lifecycle.temporal.operator.task_queues import Poller, Queue, Version
from tests.cli.cli_harness import Served
from tests.cli.cli_support import Crawlctl, Result
from tests.support.databases import make_tables
from tests.support.mariadb import MariaDb

ROOT = Path(__file__).parents[3]
SECRET = "correct-horse-battery"


@pytest.fixture
def doctor(
    crawlctl: Crawlctl,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    closed_port: Callable[[], int],
) -> Any:
    """Call ``crawlctl doctor`` where nothing of the machine's own set-up can be found."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{closed_port()}")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    (tmp_path / "none.toml").write_text("")
    monkeypatch.setenv("LIFECYCLE_SCHEDULER__URL", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("LIFECYCLE_GATEWAY__URL", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setenv("LIFECYCLE_ARCHIVE__URL", (tmp_path / "archive").as_uri())

    def call(*words: str, **env: str) -> Result:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return crawlctl("doctor", "-o", "json", *words)

    return call


#: Variables of the fixture with the addresses of parts.
NAMED = (
    *(
        "LIFECYCLE_DATABASE__URL",
        "LIFECYCLE_SCHEDULER__URL",
        "LIFECYCLE_ARCHIVE__URL",
        "LIFECYCLE_GATEWAY__URL",
    ),
    *("TEMPORAL_ADDRESS", "TEMPORAL_CONFIG_FILE"),
)


def found(result: Result, check: str) -> list[tuple[str, str]]:
    """Level and text of the findings of a check."""
    return [(one["level"], one["text"]) for one in result.json["checks"] if one["check"] == check]


# --- the whole ------------------------------------------------------------------------------------


def test_a_machine_on_which_nothing_runs(doctor: Any, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = doctor()
    assert result.code == 1
    bad = {one["check"] for one in result.json["checks"] if one["level"] == "bad"}
    assert bad == {"temporal", "schema"}
    assert all(one["fix"] for one in result.json["checks"] if one["level"] != "ok")
    assert sorted(tmp_path.rglob("*")) == before, "who only looks leaves nothing behind"


def test_fix_makes_the_schema(doctor: Any, tmp_path: Path) -> None:
    assert found(doctor(), "schema")[0][0] == "bad"
    # A slow machine may need longer for all tables than a person would wait.
    assert found(doctor("--fix", "--timeout", "20s"), "schema") == [
        ("ok", f"empty -> {head_version()}")
    ]
    assert found(doctor(), "schema") == [
        ("ok", f"version {head_version()}, which this build needs")
    ]
    with closing(sqlite_files.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    newer = f"9999, which is newer than this build's {head_version()} and works with it"
    assert found(doctor("--fix"), "schema") == [("ok", f"version {newer}")]
    with closing(sqlite_files.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE schema_compatibility SET works_from = '9999'")
    assert found(doctor(), "schema")[0][0] == found(doctor("--fix"), "schema")[0][0] == "bad"


def test_a_database_that_can_only_be_read_is_bad(
    doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.1)
    make_tables(f"sqlite:///{tmp_path}/runs.db")
    assert found(doctor(), "database")[0][0] == "ok"
    with closing(sqlite_files.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        level, text = found(doctor(), "database")[1]
    assert level == "bad"
    assert "can be read, but not written" in text
    assert "locked" in text


def test_wrong_settings_are_named_and_the_rest_is_still_checked(doctor: Any) -> None:
    result = doctor(LIFECYCLE_DATABASE__POOL_SIZE="many")
    assert result.code == 1
    assert "LIFECYCLE_DATABASE__POOL_SIZE" in found(result, "settings")[0][1]
    assert found(result, "versions")[0][0] == "ok"
    assert result.json["settings"] == []


def test_the_value_of_a_misspelt_setting_is_not_shown(doctor: Any) -> None:
    # Its name does not show that it was meant to be a secret.
    result = doctor(LIFECYCLE_GATEWAY__TOKN=SECRET, LIFECYCLE_GATEWAY__PASSPHRASE=f"{SECRET}2")
    assert SECRET not in result.out + result.err
    level, text = found(result, "settings")[0]
    assert level == "bad"
    assert "LIFECYCLE_GATEWAY__TOKN: no setting has this name" in text
    assert "Extra inputs" not in text


def test_every_setting_its_source_and_no_secret(doctor: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[worker]\nthreads = 3\n[pusher]\nsecret = "{SECRET}"\n')
    result = doctor(
        LIFECYCLE_CONFIG=str(config),
        LIFECYCLE_GATEWAY__TOKEN=SECRET,
        LIFECYCLE_DATABASE__URL=f"mysql://ann:{SECRET}@127.0.0.1:1/runs",
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_REGION="eu-central-1",
        lifecycle_cluster__slots="7",
    )
    assert SECRET not in result.out + result.err
    known = {one["name"]: (one["value"], one["source"]) for one in result.json["settings"]}
    assert set(variables(Settings)) <= set(known)
    assert known["LIFECYCLE_WORKER__THREADS"] == ("3", str(config))
    assert known["LIFECYCLE_CLUSTER__SLOTS"] == ("7", "environment")
    assert known["LIFECYCLE_CLUSTER__NAMESPACE"] == ("crawls", "default")
    assert known["LIFECYCLE_PUSHER__SECRET"] == ("(set, not shown)", str(config))
    assert known["LIFECYCLE_GATEWAY__TOKEN"] == ("(set, not shown)", "environment")
    assert known["AWS_REGION"] == ("eu-central-1", "environment")
    assert "ann" in known["LIFECYCLE_DATABASE__URL"][0]
    assert known["AWS_SECRET_ACCESS_KEY"][0] == "(set, not shown)"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("LIFECYCLE_DATABASE_URL", "did you mean LIFECYCLE_DATABASE__URL?"),
        ("LIFECYCLE_WORKERS__THREADS", "did you mean LIFECYCLE_WORKER__THREADS?"),
        ("lifecycle_catalog", "did you mean LIFECYCLE_CATALOGUE?"),
        ("LIFECYCLE_SOMETHING_ELSE", "unset it"),
    ],
)
def test_a_misspelt_setting_is_found(name: str, fix: str) -> None:
    given = {name: "x", "LIFECYCLE_DATABASE__URL": "x", "LIFECYCLE_WORKER": "{}", "OTHER": "x"}
    lines = environment.check_environment(replace(_context(), sources=sources.Sources(given)))
    assert [line.level for line in lines] == ["bad"]
    assert name in lines[0].text
    assert fix in str(lines[0].fix)


def test_for_people(doctor: Any, crawlctl: Crawlctl) -> None:
    result = crawlctl("doctor")
    assert result.code == 1
    assert "LIFECYCLE_CLUSTER__SLOTS" not in result.out
    assert "\nbad   temporal " in result.out
    assert "fix: start it (crawlctl dev" in result.out
    assert "2 bad" in result.err
    shown = crawlctl("doctor", "--settings").out
    assert shown.index("\nbad   temporal ") < shown.index("LIFECYCLE_CLUSTER__SLOTS"), (
        "checks come first"
    )
    assert crawlctl("doctor", "-o", "name").out.split() == ["temporal", "schema"]
    assert len(crawlctl("doctor", "-o", "jsonl").out.splitlines()) == len(doctor().json["checks"])
    assert yaml.safe_load(crawlctl("doctor", "-o", "yaml").out)["summary"]["bad"] == 2


def test_a_stack_of_dev_is_found_and_named(
    doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".crawl").mkdir()
    known = {
        "database": f"sqlite:///{tmp_path}/other.db",
        "temporal": "127.0.0.1:9",
        "archive": None,
    }
    (tmp_path / ".crawl" / "dev.json").write_text(json.dumps(known))
    assert "lifecycle.db" not in json.dumps(doctor().json["settings"]), (
        "settings that name parts come first"
    )
    for name in NAMED:
        monkeypatch.delenv(name)
    result = doctor()
    source = {one["name"]: one["source"] for one in result.json["settings"]}[
        "LIFECYCLE_DATABASE__URL"
    ]
    assert source == str(tmp_path / ".crawl" / "dev.json")
    assert "127.0.0.1:9 cannot be reached" in found(result, "temporal")[0][1]


@pytest.mark.parametrize("runs", [True, False])
def test_temporal_of_other_programs_hides_no_stack_that_runs(
    doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """People who use Temporal elsewhere have its variables in every shell."""
    (tmp_path / ".crawl").mkdir()
    started = start_time(os.getpid()) if runs else "before"
    known = {
        "database": f"sqlite:///{tmp_path}/other.db",
        "temporal": "127.0.0.1:9",
        "namespace": "default",
    }
    known |= {"processes": {"temporal": os.getpid()}, "started": {"temporal": started}}
    (tmp_path / ".crawl" / "dev.json").write_text(json.dumps(known))
    for name in NAMED:
        monkeypatch.delenv(name)
    result = doctor(
        TEMPORAL_ADDRESS="127.0.0.1:8", TEMPORAL_TLS="true", TEMPORAL_NAMESPACE="elsewhere"
    )
    port = 9 if runs else 8
    assert f"127.0.0.1:{port} cannot be reached" in found(result, "temporal")[0][1]
    assert ("other.db" in found(result, "schema")[0][1]) is runs
    assert ("TEMPORAL_TLS" in {one["name"] for one in result.json["settings"]}) is not runs


@pytest.mark.parametrize("stack", [True, False])
def test_a_gateway_of_elsewhere_is_not_checked_with_the_database_of_this_folder(
    doctor: Any, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: bool
) -> None:
    """Neither the database of a stack that runs here, nor the one that would be created here."""
    if stack:
        (tmp_path / ".crawl").mkdir()
        known = {"database": f"sqlite:///{tmp_path}/other.db", "gateway": "http://127.0.0.1:9"}
        (tmp_path / ".crawl" / "dev.json").write_text(json.dumps(known))
    for name in NAMED:
        monkeypatch.delenv(name)
    for words, env in (
        (("--gateway", served.url), {}),
        ((), {"LIFECYCLE_GATEWAY__URL": served.url}),
    ):
        result = doctor("--fix", *words, **env)
        assert {one["check"] for one in result.json["checks"]} == {
            "settings",
            "component",
            "environment",
            "versions",
        }
        assert "only the address of a gateway is set" in found(result, "component")[0][1]
    assert not list(tmp_path.rglob("*.db"))
    if stack:
        (tmp_path / ".crawl" / "dev.json").write_text(json.dumps(known | {"gateway": served.url}))

        assert found(doctor("--gateway", served.url), "schema"), "it is that stack's gateway"


def test_it_looks_where_this_stack_is(
    doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: Callable[[], int]
) -> None:
    known = {
        name: f"http://127.0.0.1:{closed_port()}" for name in ("scheduler", "gateway", "worker")
    }
    state = tmp_path / "elsewhere" / "state"
    state.mkdir(parents=True)
    known |= {"archive": (state / "archive").as_uri(), "events": (state / "events.jsonl").as_uri()}
    known |= {"database": f"sqlite:///{state}/lifecycle.db", "state": str(state / "cluster")}
    (state / "dev.json").write_text(json.dumps(known))
    monkeypatch.delenv("LIFECYCLE_GATEWAY__URL")
    result = doctor("--state-dir", str(state))
    assert f"{state}/archive does not exist yet" in found(result, "archive")[0][1]
    assert str(state / "lifecycle.db") in found(result, "schema")[0][1]
    shown = {one["name"]: (one["value"], one["source"]) for one in result.json["settings"]}
    assert shown["LIFECYCLE_CLUSTER__STATE_DIR"] == (
        str(state / "cluster"),
        str(state / "dev.json"),
    )


def test_empty_values_are_shown_as_they_are() -> None:
    def shown(value: object) -> str:
        return sources._shown("LIFECYCLE_X", value, Redactor([SECRET]))

    assert [
        shown(value) for value in (None, [], "", ["a b", "c"], Path("a b/c"), ["x" + SECRET])
    ] == [
        *("-", "[]", '""', '["a b", "c"]', "a b/c"),
        '["' + Redactor([SECRET]).text("x" + SECRET) + '"]',
    ]


LOADED_IN_THREADS = """
import sys
from crawler_lifecycle.cli.doctor import report, sources, verb
from crawler_lifecycle.redaction import Redactor
from crawler_lifecycle.settings import Settings, variables
settings = Settings.load()
checks = verb._checks(settings)
report.load(settings)
before = set(sys.modules)
list(report.run(checks, report.Context(settings, sources.Sources({}), Redactor([]), limit_s=3.0)))
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_packages_are_loaded_before_the_threads_of_checks_begin(
    doctor: Any, tmp_path: Path, closed_port: Callable[[], int]
) -> None:
    nowhere = f"http://127.0.0.1:{closed_port()}"
    env = {
        **os.environ,
        "AWS_ENDPOINT_URL": nowhere,
        "AWS_REGION": "eu-west-1",
        "PYTHONPATH": str(ROOT),
    }
    env |= {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "LIFECYCLE_EVENTS__URL": "eventbridge://bus",
    }
    env |= {
        "LIFECYCLE_ARCHIVE__URL": "s3://bucket",
        "LIFECYCLE_PUSHER__APP_ID": "1",
        "LIFECYCLE_PUSHER__KEY": "key",
    }
    env |= {"LIFECYCLE_PUSHER__SECRET": SECRET, "LIFECYCLE_PUSHER__HOST": "127.0.0.1"}
    command = [sys.executable, "-c", LOADED_IN_THREADS]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True
    )
    ours = {
        "crawler_lifecycle",
        "boto3",
        "botocore",
        "pusher",
        "sqlalchemy",
        "temporalio",
    }
    assert not ours & set(done.stdout.split())


def test_what_is_loaded_before_the_checks_exists() -> None:
    named = (*(one for names in report.SLOW.values() for one in names), *KubernetesKind.slow)
    assert [name for name in named if importlib.util.find_spec(name) is None] == []


def test_a_folder_without_a_stack(doctor: Any, tmp_path: Path) -> None:
    result = doctor("--state-dir", str(tmp_path / "nothing"))
    assert result.code == 3
    assert "crawlctl dev --state-dir" in result.err


# --- running checks -------------------------------------------------------------------------------


def _context(**more: Any) -> Context:
    return Context(None, sources.Sources({}), Redactor([SECRET]), **more)


def test_a_check_that_crashes_or_hangs_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # The check that hangs times out, and not those that respond.
    monkeypatch.setattr(
        report, "time", SimpleNamespace(monotonic=iter([0.0, 60.0, 0.0, 0.0]).__next__)
    )
    held = threading.Event()

    def crash(_: Context) -> list[Line]:
        raise ZeroDivisionError(f"with {SECRET}")

    def hang(_: Context) -> list[Line]:
        held.wait(600)
        return []

    checks = [
        Check("hangs", hang, needs_settings=False),
        Check("crashes", crash, needs_settings=False),
        Check(
            "fine",
            lambda _: [Line("fine", "ok", "fine", "a fix that nobody needs")],
            needs_settings=False,
        ),
        Check("needs", crash),
    ]
    try:
        lines = list(report.run(checks, _context(limit_s=60)))
    finally:
        held.set()
    assert [(line.check, line.level) for line in lines] == [
        ("hangs", "bad"),
        ("crashes", "bad"),
        ("fine", "ok"),
    ]
    assert "no response within 60 s" in lines[0].text
    assert "ZeroDivisionError" in lines[1].text
    assert SECRET not in lines[1].text
    assert lines[2].fix is None


# --- what findings mean ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "uncertain", "level"),
    [
        (0.3, 0.5, "ok"),
        (2.4, 0.5, "ok"),
        (3.0, 0.5, "warn"),
        (-3.0, 0.0, "warn"),
        (-3.6, 0.5, "bad"),
        (3600, 1, "bad"),
    ],
)
def test_clocks(ahead: float, uncertain: float, level: str) -> None:
    line = report.clock_line("the database", ahead, uncertain)
    assert line.level == level
    if level != "ok":
        assert ("behind" in line.text) == (ahead > 0)


@pytest.mark.parametrize(
    ("wanted", "levels"),
    [
        (["httpx<1,>=0.28", "pytest>=9; extra == 'test'"], []),
        (["httpx>=99"], ["bad"]),
        (["httpx (<0.1)"], ["bad"]),
        (["there-is-no-such-package>=1"], ["bad"]),
        (["temporalio[opentelemetry]<2,>=1.35"], []),
        (["httpx~=0.28", "httpx!=0.0", "httpx"], []),
    ],
)
def test_packages(wanted: list[str], levels: list[str]) -> None:
    assert [line.level for line in environment.requirement_lines(wanted)] == levels


def test_search_attributes() -> None:
    fine = dict(names.SEARCH_ATTRIBUTES)
    assert temporal.attributes_problem(fine, "command") is None
    missing = temporal.attributes_problem(
        {k: v for k, v in fine.items() if k != "CrawlFlow"}, "command"
    )
    assert missing is not None
    assert "CrawlFlow" in missing.text
    assert "--fix" in str(missing.fix)
    wrong = temporal.attributes_problem(fine | {"CrawlRunId": "Keyword"}, "command")
    assert wrong is not None
    assert "CrawlRunId is Keyword, not Int" in wrong.text


@pytest.mark.parametrize(
    ("version", "least", "is_old"),
    [
        *[("8.0.15", (8, 0), False), ("5.7.44-log", (8, 0), True)],
        *[
            ("10.11.0-MariaDB", (10, 11), False),
            ("11.4.2", (10, 11), False),
            ("10.6.23", (10, 11), True),
        ],
        *[("1.31.0-151.2", (1, 31), False), ("", (1, 31), False)],
    ],
)
def test_a_server_that_is_too_old_is_named(
    version: str, least: tuple[int, int], is_old: bool
) -> None:
    lines = report.old("database", "it", version, least, "it lacks something")
    assert bool(lines) is is_old
    if is_old:
        text = f"it {version} is too old: it lacks something"
        assert lines == [
            report.bad("database", text, f"upgrade it to {least[0]}.{least[1]} or newer")
        ]


def test_an_installation_is_checked_whatever_the_settings_say_of_the_cluster(
    doctor: Any, tmp_path: Path
) -> None:
    result = doctor("--cluster", LIFECYCLE_CLUSTER__KUBECONFIG=str(tmp_path / "none"))
    assert result.code == 1
    checks = {one["check"] for one in result.json["checks"]}
    assert checks >= {"component", "temporal", "cluster"}
    assert not checks & {"events", "pushes", "quotas"}
    assert found(result, "cluster")[0][0] == "bad"


def _pollers(alive: int, version: Version = None) -> list[Poller]:
    return [Poller(version, 1.0, True)] * alive


@pytest.mark.parametrize(
    ("pollers", "backlog", "age", "level"), [(0, 0, 0, "bad"), (2, 5, 3, "ok"), (2, 5, 90, "warn")]
)
def test_task_queues(pollers: int, backlog: int, age: float, level: str) -> None:
    line = temporal.queue_line(
        Queue(names.QUEUE_CONTROL, "activities", _pollers(pollers), backlog, age)
    )
    assert line.level == level
    assert level == "ok" or "crawlctl worker control" in str(line.fix)


def test_a_missing_worker_of_the_role_plans_is_told_by_that_name() -> None:
    line = temporal.queue_line(Queue(names.QUEUE_USER_CODE, "activities", []))
    assert (line.level, line.text.startswith("no worker with the user-code role")) == ("warn", True)
    assert "LIFECYCLE_USER_CODE__MODULES" in str(line.fix)
    waits = temporal.queue_line(
        Queue(names.QUEUE_USER_CODE, "activities", [], backlog=2, backlog_age_s=70.0)
    )
    assert (waits.level, "2 waiting" in waits.text) == ("bad", True)
    left = temporal.queue_line(
        Queue(names.QUEUE_USER_CODE, "activities", [Poller(None, 9.0, False)])
    )
    assert (left.level, "last seen 9 s ago" in left.text) == ("bad", True)
    functions = temporal.queue_line(Queue(names.QUEUE_FUNCTIONS, "activities", []))
    assert (functions.level, "functions of graphs are not called" in functions.text) == (
        "warn",
        True,
    )
    slow = temporal.queue_line(Queue(names.QUEUE_FUNCTIONS, "activities", _pollers(1), 9, 70.0))
    assert "LIFECYCLE_USER_CODE__FUNCTIONS" in str(slow.fix)


def test_quotas_of_nobody_are_told(doctor: Any, tmp_path: Path) -> None:
    keys = (
        "token:ci",
        "token:gone",
        "token:*",
        "pool:default",
        "pool:slow",
        "pool:stored",
        "pool:lost",
        "project:shop",
    )
    quotas, pools = json.dumps({key: {"live_tasks": 1} for key in keys}), json.dumps({"slow": {}})
    lost = ("warn", "a quota is for pool lost, and there is no such pool")
    unknown = doctor(LIFECYCLE_QUOTAS=quotas, LIFECYCLE_POOLS=pools)
    assert found(unknown, "quotas") == [], "there is no database yet"
    store = open_store(make_tables(f"sqlite:///{tmp_path}/runs.db"), pool_size=1)
    store.pools.set_pool("stored", Pool(), None)
    store.close()
    assert found(doctor(), "quotas") == [lost]
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(new_token("ci", "read")[1])
    gone = ("warn", "a quota is for token gone, and there is no such token")
    assert found(doctor(LIFECYCLE_GATEWAY__CALLERS_FILE=str(tokens)), "quotas") == [
        gone,
        lost,
    ]
    tokens.write_text("")
    [(level, text)] = found(doctor(), "quotas")
    assert (level, "has no [[token]]" in text) == ("bad", True)


@pytest.mark.parametrize(("value", "said"), [
    ('{"token:": {}}', r"QUOTAS__TOKEN:: .* should match pattern"),
    ('{"user:ci": {}}', r"QUOTAS__USER:CI: .* should match pattern '\^\(token\|pool\|project\):"),
    ('{"token:ci": {"live": 1}}', r"QUOTAS__TOKEN:CI__LIVE: .* should be 'starts_per_hour', 'live_tasks'"),
    ('{"pool:*": {"live_tasks": -1}}', r"QUOTAS__POOL:\*__LIVE_TASKS: -1 is not allowed; .* greater than or eq"),
    ('{"pool:*": {"live_tasks": 1000001}}', r"QUOTAS__POOL:\*__LIVE_TASKS: 1000001 is not allowed; .* 1000000"),
])  # fmt: skip
def test_a_wrong_quota_is_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    monkeypatch.setenv("LIFECYCLE_QUOTAS", value)
    with pytest.raises(InvalidRequest, match=said):
        Settings.load()


def test_a_worker_that_died_is_no_poller() -> None:
    dead = Poller(None, 9.2, False)
    line = temporal.queue_line(
        Queue(names.QUEUE_CONTROL, "activities", [dead, Poller(None, 70.0, False)])
    )
    assert (line.level, line.text) == (
        "bad",
        f"no worker polls {names.QUEUE_CONTROL} (activities): last seen 9 s ago",
    )
    line = temporal.queue_line(Queue(names.QUEUE_CONTROL, "activities", [dead, *_pollers(1)]))
    assert line.level == "ok"
    assert "1 polling; another one was last seen 9 s ago" in line.text


OLD, NEW = ("crawls", "1a"), ("crawls", "2b")


@pytest.mark.parametrize(
    ("pollers", "current", "ramping", "level", "fix"),
    [
        (_pollers(1), NEW, None, "bad", "--deployment-name crawls --unversioned"),
        (_pollers(1, OLD), NEW, None, "bad", "--deployment-name crawls --build-id 1a"),
        (_pollers(1, OLD), None, None, "bad", "--deployment-name crawls --build-id 1a"),
        (_pollers(1, OLD), NEW, OLD, "bad", "crawlctl worker workflows"),
        (_pollers(1, NEW), NEW, None, "ok", None),
        ([*_pollers(1, OLD), *_pollers(1, NEW)], NEW, None, "ok", None),
        ([*_pollers(1), *_pollers(1, OLD)], None, OLD, "ok", None),
    ],
)
def test_pollers_that_get_no_work_are_no_workers(
    pollers: list[Poller],
    current: Version,
    ramping: Version,
    level: str,
    fix: str | None,
) -> None:
    line = temporal.queue_line(
        Queue(names.QUEUE_MAIN, "workflows", pollers, current=current, ramping=ramping)
    )
    assert line.level == level
    assert (line.fix is None) == (fix is None)
    assert fix is None or fix in str(line.fix)


class Listed:
    """A Temporal server with one worker, whose clock is behind ours.

    The worker polled its queue ``polled_s`` seconds ago; with ``behind_s=None``, the server has no
    heartbeat of it.
    """

    namespace = "default"

    def __init__(
        self,
        behind_s: float | None,
        *,
        beats: bool,
        polled_s: float = 0.0,
        takes_beats: bool = True,
    ) -> None:
        self.workflow_service = self
        self._behind_s, self._beats, self._polled_s, self._takes_beats = (
            behind_s,
            beats,
            polled_s,
            takes_beats,
        )
        self._first = time.time()

    async def describe_namespace(self, request: Any, retry: bool) -> DescribeNamespaceResponse:
        answer = DescribeNamespaceResponse()
        answer.namespace_info.capabilities.worker_heartbeats = self._takes_beats
        return answer

    async def describe_task_queue(self, request: Any, retry: bool) -> DescribeTaskQueueResponse:
        answer = DescribeTaskQueueResponse()
        seen = int((time.time() - self._polled_s) * 1e6)
        answer.pollers.add(identity="7@there").last_access_time.FromMicroseconds(seen)
        return answer

    async def list_workers(self, request: Any, retry: bool) -> ListWorkersResponse:
        answer = ListWorkersResponse()
        if self._behind_s is None:
            return answer
        for queue in SERVED_BY:
            beat = answer.workers_info.add().worker_heartbeat
            beat.task_queue, beat.worker_identity = queue, "7@there"
            at = (time.time() if self._beats else self._first) - self._behind_s
            beat.heartbeat_time.FromMicroseconds(int(at * 1e6))
        return answer


@pytest.mark.parametrize(
    ("behind_s", "beats", "levels"),
    [(0, True, {"ok"}), (40, True, {"ok"}), (9, False, {"bad"}), (0, False, {"ok"})],
)
async def test_a_worker_lives_by_its_heartbeats_whatever_its_clock_says(
    behind_s: float, beats: bool, levels: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queues, "BEAT_S", 0.01)
    lines = await temporal.queue_lines(Server(Listed(behind_s, beats=beats), 5.0))  # type: ignore[arg-type]
    assert {line.level for line in lines if line.check == "workers"} == levels
    assert len(lines) >= 6


@pytest.mark.parametrize(
    ("polled_s", "takes_beats", "levels"),
    [(1, True, {"ok"}), (9, True, {"bad"}), (9, False, {"ok"}), (121, False, {"bad"})],
)
async def test_a_worker_without_a_heartbeat_lives_by_its_last_poll(
    polled_s: float, takes_beats: bool, levels: set[str]
) -> None:
    """It may have died before its first heartbeat: then nobody has to wait two minutes for the
    truth.
    """
    server = Listed(None, beats=False, polled_s=polled_s, takes_beats=takes_beats)
    lines = await temporal.queue_lines(Server(server, 5.0))  # type: ignore[arg-type]
    assert {line.level for line in lines if line.check == "workers"} == levels


async def test_heartbeats_that_nobody_tells_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(request: Any, retry: bool) -> ListWorkersResponse:
        raise RPCError("not allowed", RPCStatusCode.PERMISSION_DENIED, b"")

    server = Listed(None, beats=False, polled_s=30)
    monkeypatch.setattr(server, "list_workers", refused)
    lines = await temporal.queue_lines(Server(server, 5.0))  # type: ignore[arg-type]
    assert {line.level for line in lines if line.check == "workers"} == {"ok"}


# --- database -------------------------------------------------------------------------------------

FINE = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "max_allowed_packet": str(64 * 1024**2),
    "max_connections": "151",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "wait_timeout": "28800",
    "read_only": "OFF",
}


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("binlog_format", "STATEMENT", "bad"),
        ("max_allowed_packet", str(1024**2), "bad"),
        ("max_allowed_packet", str(8 * 1024**2), "warn"),
        ("max_connections", "20", "warn"),
        ("innodb_flush_log_at_trx_commit", "2", "warn"),
        ("innodb_doublewrite", "OFF", "warn"),
        ("wait_timeout", "60", "warn"),
        ("read_only", "ON", "bad"),
        ("read_only", "NO_LOCK_NO_ADMIN", "bad"),
    ],
)
def test_variables_of_a_server(name: str, value: str, level: str) -> None:
    settings = Settings()
    assert [line.level for line in database.variable_lines(FINE, settings)] == ["ok"]
    lines = database.variable_lines(FINE | {name: value}, settings)
    assert [line.level for line in lines] == [level]
    assert name in lines[0].text or "read-only" in lines[0].text
    assert database.variable_lines({}, settings) == []


def test_statement_format_without_a_log_is_harmless() -> None:
    assert (
        database.variable_lines(
            FINE | {"binlog_format": "STATEMENT", "log_bin": "OFF"}, Settings()
        )[0].level
        == "ok"
    )


def test_file_systems(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    here = str(tmp_path.resolve()).replace(" ", "\\040")
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\n"
        f"/dev/b {here} ext4 rw,relatime 0 0\n"
        f"server:/x {here} nfs4 rw 0 0\n"
        "garbage\n"
        "//x/y /somewhere\\040else cifs rw 0 0\n"
    )
    assert database.file_system(tmp_path / "below", mounts) == "nfs4"
    assert database.file_system(Path("/usr"), mounts) == "ext4"
    assert database.file_system(Path("/somewhere else/x"), mounts) == "cifs"
    assert database.file_system(tmp_path, tmp_path / "missing") == ""


def test_sqlite_on_a_network_is_bad(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "file_system", lambda folder: "fuse.sshfs")
    assert found(doctor(), "database")[0][0] == "bad"


def test_a_real_server(doctor: Any, mariadb: MariaDb) -> None:
    with mariadb.database() as url:
        result = doctor(LIFECYCLE_DATABASE__URL=url)
        assert found(result, "schema")[0][0] == "bad"
        upgrade(url)
        result = doctor(LIFECYCLE_DATABASE__URL=url)
    levels = {level for level, _ in found(result, "database")}
    assert "bad" not in levels
    assert "MariaDB" in found(result, "database")[0][1]
    assert found(result, "schema")[0][0] == "ok"
    assert any("the database" in text and level == "ok" for level, text in found(result, "clock"))


def test_a_database_that_is_away(doctor: Any, closed_port: Callable[[], int]) -> None:
    result = doctor(LIFECYCLE_DATABASE__URL=f"mysql://ann:{SECRET}@127.0.0.1:{closed_port()}/runs")
    assert found(result, "database")[0][0] == "bad"
    assert SECRET not in result.out


# --- destinations ---------------------------------------------------------------------------------


def test_an_archive_that_cannot_be_written_to(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file")
    assert found(doctor(), "archive")[0][0] == "bad"
    (tmp_path / "archive").unlink()
    (tmp_path / "archive").mkdir()
    assert found(doctor(), "archive")[0][0] == "ok"
    assert list((tmp_path / "archive").iterdir()) == []


def test_a_damaged_database_is_told_once(doctor: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    make_tables(f"sqlite:///{file}")
    whole = file.read_bytes()
    told = "The database file is damaged"
    # Tables that no check reads, and a file that is no database.
    for content in (
        whole[: 20 * 4096] + b"\xf5" * 40 * 4096 + whole[60 * 4096 :],
        b"no database" * 1000,
    ):
        file.write_bytes(content)
        result = doctor()
        lines = [one for one in result.json["checks"] if one["check"] in ("database", "schema")]
        assert [(one["check"], one["level"], one["text"]) for one in lines] == [
            ("database", "bad", told)
        ]
        assert lines[0]["fix"] == "restore a complete copy: crawlctl db restore FILE"


def test_the_version_of_sqlite_is_shown(doctor: Any, tmp_path: Path) -> None:
    make_tables(f"sqlite:///{tmp_path}/runs.db")
    assert f"SQLite {sqlite_files.driver.sqlite_version} at " in found(doctor(), "database")[0][1]
