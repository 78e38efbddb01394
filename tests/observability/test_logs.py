"""Every line of our processes is one valid JSON object, with the fields of its run and without any
secret.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.observability import logs
from crawler_lifecycle.redaction import MASK
from crawler_lifecycle.settings import GatewaySettings, LogSettings, Settings
from crawler_lifecycle.web.serving import Guard

CANARY = "c4nary-0f-the-tests"


def written(stream: io.StringIO) -> str:
    """Return what was written, once the writing thread has done so."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    return stream.getvalue()


Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Configure logging as a service does, into a buffer, and restore it afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    yield stream
    root.handlers[:], root.level = before[0], before[1]
    sys.excepthook, threading.excepthook = before[2], before[3]
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    logs._process.clear()
    redaction.forget()


@pytest.fixture
def lines(fresh: io.StringIO) -> Lines:
    """Return a service's lines, parsed."""
    logs.configure("tests", Settings(gateway=GatewaySettings(token=SecretStr(CANARY))))

    def parsed() -> list[dict[str, Any]]:
        written(fresh)
        return [json.loads(line) for line in written(fresh).splitlines()]

    return parsed


log = logging.getLogger("tests.logs")


def test_a_service_says_which_variable_nobody_reads(
    fresh: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would silently use the default database."""
    monkeypatch.setattr(sys, "stderr", fresh)  # pytest removes it between fixture and test
    monkeypatch.setenv("LIFECYCLE_DATABSE__URL", f"mysql+pymysql://u:{CANARY}@db/runs")
    logs.configure("tests", Settings())
    (line,) = [json.loads(line) for line in written(fresh).splitlines()]
    assert line["level"] == "warning"
    assert "LIFECYCLE_DATABSE__URL is set, but no setting reads it" in line["event"]
    assert "LIFECYCLE_DATABASE__URL" in line["event"]
    assert CANARY not in json.dumps(line)


def test_a_line_names_service_process_and_subject(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(run_id=7, attempt=2, activity="sync_statuses"):
        log.info("%d of %d", 1, 2, extra={"task_id": 12})
    (line,) = lines()
    wanted = {
        "level": "info", "event": "1 of 2", "service": "tests", "run_id": 7, "attempt": 2, "task_id": 12,
        "activity": "sync_statuses", "logger": "tests.logs",
    }  # fmt: skip
    assert wanted.items() <= line.items()
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert isinstance(line["pid"], int)


def test_dictionaries_of_the_sdk_become_flat_fields(lines: Lines) -> None:
    activity = {
        "workflow_id": "w",
        "workflow_run_id": "r",
        "activity_type": "a",
        "attempt": 3,
        "task_queue": "q",
    }
    workflow = {
        "workflow_id": "w",
        "run_id": "r",
        "workflow_type": "W",
        "attempt": 1,
        "task_queue": "q",
    }
    log.info("x", extra={"temporal_activity": activity})
    log.info("x", extra={"temporal_workflow": workflow})
    first, second = lines()
    assert {
        "workflow_id": "w",
        "workflow_run_id": "r",
        "activity": "a",
        "try": 3,
    }.items() <= first.items()
    assert {
        "workflow_id": "w",
        "workflow_run_id": "r",
        "workflow": "W",
        "task_queue": "q",
    }.items() <= second.items()
    assert not {"temporal_activity", "temporal_workflow", "attempt"} & (set(first) | set(second))


@pytest.mark.parametrize(
    "hostile",
    ["a\nb", "a\r\nlevel=error", "\x1b[31mred", "\u202egnp.exe", "\u2028", "\x00", "\x85"],
)
def test_no_text_breaks_the_line_or_steers_a_terminal(
    lines: Lines, fresh: io.StringIO, hostile: str
) -> None:
    log.warning("crawler %s", hostile, extra={"crawler": hostile, "more": {hostile: [hostile]}})
    assert written(fresh).count("\n") == 1
    assert written(fresh).isascii()
    (line,) = lines()
    assert hostile not in json.dumps(line, ensure_ascii=False)
    assert repr(hostile)[1:-1].replace("\\\\", "\\") in line["event"]


@given(text=st.text(max_size=200), key=st.text(max_size=20))
def test_any_text_is_one_valid_line(text: str, key: str) -> None:
    stream = io.StringIO()
    handler = logs._Handler(stream)
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (text,), None)
    record.field = {key: text}
    handler.handle(record)
    handler.flush()
    assert stream.getvalue().count("\n") == 1
    json.loads(stream.getvalue())


def test_lengths_are_bounded(lines: Lines, fresh: io.StringIO) -> None:
    log.info("x" * 10**6, extra={"field": "y" * 10**6, "list": list(range(10**5))})
    assert len(written(fresh)) < 32 * 1024
    assert "(cut)" in lines()[0]["event"]


def test_secrets_are_masked_in_message_field_and_traceback(
    lines: Lines, fresh: io.StringIO
) -> None:
    log.info(
        "token is %s",
        CANARY,
        extra={"url": f"https://me:{CANARY}@h/", "password": "other-secret", "a": {CANARY: 1}},
    )
    try:
        raise ValueError(f"cannot log in with {CANARY}")
    except ValueError:
        log.exception("failed")
    assert CANARY not in written(fresh)
    assert "other-secret" not in written(fresh)
    first, second = lines()
    assert first["password"] == MASK
    assert "Traceback" in second["exception"]
    assert MASK in second["exception"]


def test_our_own_errors_are_told_without_a_traceback(lines: Lines) -> None:
    try:
        raise StoreUnavailable("the database is locked")
    except StoreUnavailable:
        log.warning("Completing activity as failed", exc_info=True)
    (line,) = lines()
    assert (line["error"], line["error_type"]) == ("the database is locked", "StoreUnavailable")
    assert "exception" not in line


def test_a_record_that_cannot_be_formatted_does_not_tell_its_arguments() -> None:
    stream = io.StringIO()
    handler = logs._Handler(stream)
    handler.handle(logging.LogRecord("x", logging.INFO, "here.py", 1, "%d", (CANARY,), None))
    handler.flush()
    assert CANARY not in stream.getvalue()
    assert json.loads(stream.getvalue())["where"] == "here.py:1"


def test_the_last_words_of_a_process_have_the_same_form(lines: Lines, fresh: io.StringIO) -> None:
    def broken() -> None:
        raise RuntimeError(f"with {CANARY}")

    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()
    try:
        broken()
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
    assert CANARY not in written(fresh)
    assert [line["event"].split(":")[0] for line in lines()[:2]] == ["RuntimeError"] * 2
    assert "deprecated" in lines()[2]["event"]


def test_level_and_format_follow_the_settings(
    fresh: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", fresh)  # pytest added its own after the fixture
    logs.configure("tests", Settings(log=LogSettings(level="WARNING", format="pretty")))
    log.info("quiet")
    log.warning("loud\n\x1b[2J", extra={"run_id": 7})
    shown = written(fresh)
    assert "quiet" not in shown
    assert r"loud\n\x1b[2J" in shown
    assert "run_id" in shown
    assert not shown.startswith("{")


def test_every_secret_of_the_settings_is_known() -> None:
    tree = Settings.model_validate({
        "database": {"url": f"mysql+pymysql://u:{CANARY}-db@h/x"}, "gateway": {"token": f"{CANARY}-token"},
        "pusher": {"app_id": "1", "key": "k", "secret": f"{CANARY}-pusher", "cluster": "eu"},
    })  # fmt: skip
    assert logs.secrets_of(tree) == {f"{CANARY}-{name}" for name in ("db", "token", "pusher")}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    logging.getLogger("inner").info("inside")
    if scope["path"] == "/crash":
        raise RuntimeError("no answer")
    await send({"type": "http.response.start", "status": 202, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_lines_of_a_request_carry_its_name_and_run(lines: Lines) -> None:
    transport = httpx.ASGITransport(Guard(_app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post("/v1/runs/7/stop", headers={"X-Request-Id": "mine-1"})
        other = await client.get("/v1/runs", headers={"X-Request-Id": "bad id\x7f"})
        crashed = await client.get("/crash")
        await client.get("/v1/runs")
    assert answer.headers.get_list("x-request-id") == ["mine-1"]
    assert len(other.headers.get_list("x-request-id")) == 1
    ours = [
        line for line in lines() if line["logger"] in ("inner", "crawler_lifecycle.web.serving")
    ]
    assert [line["http_request"] for line in ours[:2]] == ["mine-1", "mine-1"]
    assert [line["run_id"] for line in ours[:2]] == [7, 7]
    assert ours[1]["status"] == 202
    assert "run_id" not in ours[2]
    told = next(line for line in ours if line.get("path") == "/crash" and "status" in line)
    assert (told["status"], told["http_request"]) == (500, crashed.headers["x-request-id"])
    assert told["level"] == "warning"
    reads = [line["event"] for line in ours if line.get("path") == "/v1/runs"]
    assert reads == ["inside", "inside"], "reads that worked are told at DEBUG"
    log.info("after")
    assert "path" not in lines()[-1]
