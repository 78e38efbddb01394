"""Starting, controlling and waiting for managers."""

from __future__ import annotations

import json

import httpx
import pytest
import respx

from tests.cli.cli_answers import MANAGER, MANAGER_ENDED, PLAN
from tests.cli.cli_support import Crawlctl

COMPLETED = MANAGER | {
    "status": "COMPLETED",
    "outcome": "finished",
    "ended_at": "2026-11-20T11:59:58Z",
    "live": 0,
}
FAILED = COMPLETED | {"status": "FAILED", "outcome": "failed", "ended_by": "crawler"}


def body(route: respx.Route) -> object:
    return json.loads(route.calls.last.request.content)


def test_a_class_is_started_with_the_words_behind_the_dashes(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    """This also holds for words that look like our options; the last part of the class's name is
    enough.
    """
    gateway.get("/v1/user-code").respond(
        json={"user_code": [PLAN, PLAN | {"fingerprint": "of an older build"}]}
    )
    route = gateway.post("/v1/managers").respond(202, json=MANAGER | {"note": None})
    words = ("--", "-o", "--tag=x", "--flow-id", "f-1", "books")
    result = crawlctl(
        "manager",
        "start",
        "ShopsManager",
        "--tag",
        "-night",
        "--request-id",
        "k",
        "--project",
        "a",
        *words,
    )
    assert result.code == 0, result.err
    given = {
        "plan": "shops.managers:ShopsManager",
        "argv": list(words[1:]),
        "tags": ["-night"],
        "project": "a",
        "requested_by": "tester",
    }
    assert body(route) == given
    assert route.calls.last.request.headers["Idempotency-Key"] == "k"


def test_a_name_that_several_classes_end_with_is_refused(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/user-code").respond(
        json={"user_code": [PLAN, PLAN | {"plan": "old.shops.managers:ShopsManager"}]}
    )
    result = crawlctl("manager", "start", "managers:ShopsManager")
    assert result.code == 2
    assert "old.shops.managers:ShopsManager" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give either a class or --crawler"),
        (("a:B", "--crawler", "c"), "give either a class or --crawler"),
        (("a:B", "--retries", "3"), "need --crawler"),
        (("a:B", "--each", "-"), "need --crawler"),
        (("--crawler", "c", "--", "--x"), "give either a class or --crawler"),
        (("a:B", "--wtach"), "Unknown option"),
        (("--crawler", "c", "--max-per-key", "domain"), "such as domain=2"),
        (("--crawler", "c", "--max-per-key", "domain=0"), "such as domain=2"),
        (("--crawler", "c", "--request-id", "x" * 101), "1 to 100 ASCII characters"),
    ],
)
def test_a_call_that_cannot_be_meant_asks_nobody(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: tuple[str, ...], said: str
) -> None:
    result = crawlctl("manager", "start", *words)
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(("end", "code"), [(COMPLETED, 0), (FAILED, 5), (MANAGER_ENDED, 6)])
@pytest.mark.parametrize("verb", ["wait", "watch"])
def test_the_exit_code_tells_how_it_ended(
    gateway: respx.MockRouter, crawlctl: Crawlctl, verb: str, end: dict[str, object], code: int
) -> None:
    gateway.get("/v1/managers/3").mock(
        side_effect=[httpx.Response(200, json=one) for one in (MANAGER, end)]
    )
    result = crawlctl("manager", verb, "3")
    assert result.code == code
    assert "20 of 20 runs are live" in result.err + result.out


def test_waiting_after_a_resume_does_not_take_the_end_before_for_the_new_one(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/managers/3/resume").respond(
        202, json=FAILED | {"note": "It goes on as its next attempt."}
    )
    again = COMPLETED | {"attempt": 2, "ended_at": "2026-11-20T12:00:00Z"}
    gateway.get("/v1/managers/3").mock(
        side_effect=[httpx.Response(200, json=one) for one in (FAILED, FAILED, again)]
    )
    assert crawlctl("manager", "resume", "3", "--wait").code == 0


def test_a_start_that_is_a_repeat_tells_the_end_that_there_was(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/managers").respond(202, json=FAILED | {"note": None})
    gateway.get("/v1/managers/3").respond(json=FAILED)
    assert (
        crawlctl("manager", "start", "--crawler", "shops", "--request-id", "k", "--wait").code == 5
    )


def test_one_that_cannot_be_stopped_keeps_no_other_running(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gone = {"code": "manager_not_found", "detail": "manager 2 does not exist"}
    gateway.post("/v1/managers/2/stop").respond(404, json=gone)
    route = gateway.post("/v1/managers/3/stop").respond(
        202, json=MANAGER | {"status": "STOPPING", "note": None}
    )
    result = crawlctl("manager", "stop", "2", "3", "--leave", "--reason", "wrong list")
    assert result.code == 3
    assert "crawlctl manager list" in result.err
    assert body(route) == {"leave": True, "reason": "wrong list", "requested_by": "tester"}


def test_force_needs_a_yes_where_nobody_can_be_asked(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    result = crawlctl("manager", "force-stop", "3")
    assert result.code == 2
    assert "crawlctl manager force-stop 3 --yes" in result.err
    route = gateway.post("/v1/managers/3/stop").respond(
        202, json=MANAGER | {"status": "STOPPING", "note": None}
    )
    assert crawlctl("manager", "force-stop", "3", "--yes").code == 0
    assert body(route) == {"force": True, "requested_by": "tester"}


def test_runs_are_offered_where_there_are_some(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.get("/v1/managers/3").respond(json=MANAGER)
    assert "crawlctl list --parent" in crawlctl("manager", "describe", "3").err
    route.respond(json=MANAGER | {"jobs": {"queued": 4, "skipped": 1}})
    said = crawlctl("manager", "describe", "3").err
    assert "crawlctl manager watch 3" in said
    assert "crawlctl list" not in said, "there is nothing to list"
