"""``crawlctl audit``: its exit codes, and how it waits for a longer audit."""

from __future__ import annotations

import json

import httpx
import pytest
import respx

from tests.cli.cli_answers import AUDIT, problem
from tests.cli.cli_support import Crawlctl

GOING_ON = {"audit_id": "0190-audit", "report": None, "note": "It is going on."}
CLEAN = AUDIT | {"found": {}, "repaired": {}, "left": 0, "findings": []}
MENDED = AUDIT | {"found": {"orphan": 1}, "repaired": {"orphan": 1}, "left": 0, "repair": True}
BLIND = CLEAN | {"problems": ["cluster tasks could not be compared: 503"]}


@pytest.mark.parametrize(("report", "code"), [(CLEAN, 0), (MENDED, 0), (AUDIT, 1), (BLIND, 1)])
def test_the_exit_code_says_whether_something_is_left(
    crawlctl: Crawlctl, gateway: respx.MockRouter, report: dict[str, object], code: int
) -> None:
    asked = gateway.post("/v1/audit").respond(
        200, json={"audit_id": "a", "report": report, "note": None}
    )
    result = crawlctl("audit", "--repair")
    assert result.code == code, result.err
    assert asked.calls.last.request.content == b'{"repair":true,"unknown":"leave"}'
    if report is BLIND:
        assert "503" in result.err


def test_an_audit_that_takes_longer_is_waited_for(
    crawlctl: Crawlctl, gateway: respx.MockRouter
) -> None:
    gateway.post("/v1/audit").respond(202, json=GOING_ON)
    answers = [
        problem(404, "audit_not_found", "there is no report yet"),
        problem(404, "audit_not_found", "there is no report yet"),
        httpx.Response(200, json={"report": CLEAN, "findings": []}),
    ]
    asked = gateway.get("/v1/audit").mock(side_effect=answers)
    result = crawlctl("audit", "-o", "json")
    assert (result.code, result.json["left"]) == (0, 0)
    assert asked.calls.last.request.url.params["audit_id"] == "0190-audit"


def test_an_audit_that_nobody_carries_out_is_given_up(
    crawlctl: Crawlctl, gateway: respx.MockRouter
) -> None:
    gateway.post("/v1/audit").respond(202, json=GOING_ON)
    gateway.get("/v1/audit").mock(
        return_value=problem(404, "audit_not_found", "there is no report yet")
    )
    result = crawlctl("audit", "--timeout", "0.01s")
    assert result.code == 7
    assert "audit role" in result.err


@pytest.mark.parametrize(("option", "unknown"), [("--adopt", "adopt"), ("--end-unknown", "end")])
def test_a_person_says_what_becomes_of_what_no_row_knows(
    crawlctl: Crawlctl, gateway: respx.MockRouter, option: str, unknown: str
) -> None:
    asked = gateway.post("/v1/audit").respond(
        200, json={"audit_id": "a", "report": CLEAN, "note": None}
    )
    assert crawlctl("audit", option).code == 0
    assert json.loads(asked.calls.last.request.content) == {"repair": False, "unknown": unknown}
    assert crawlctl("audit", "--adopt", "--end-unknown").code == 2
