"""What the verbs that show something write in each format."""

from __future__ import annotations

import json
import re

import httpx
import pytest
import respx
import yaml

from crawler_lifecycle.cli.output import as_yaml
from crawler_lifecycle.cli.runs.texts import next_steps
from tests.cli.cli_answers import COMPLETED, CRAWLER, FAILED, RUN, STOPPED, TASKS
from tests.cli.cli_support import Crawlctl


def _run_page(gateway: respx.MockRouter, run: dict[str, object]) -> None:
    gateway.get("/v1/runs/7").respond(json=run)
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/corrections").respond(json={"corrections": []})


@pytest.mark.parametrize(
    "words",
    [("-o", "json", "list"), ("list", "-o", "json"), ("ls", "-ojson"), ("--output=json", "ls")],
)
def test_list_as_json_with_the_option_anywhere(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: list[str]
) -> None:
    gateway.get("/v1/runs").respond(json={"runs": [RUN]})
    result = crawlctl(*words)
    assert result.code == 0
    assert result.json == {"runs": [RUN]}


def test_a_list_says_how_many_polls_are_overdue(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    words = "3 polls are overdue, the oldest (run 7) by 2 min 44 s: nothing after 2026-11-20T11:57:16Z is verified"
    overdue = {
        "count": 3,
        "since": "2026-11-20T11:57:16Z",
        "run_id": 7,
        "verified_at": None,
        "text": words,
    }
    gateway.get("/v1/runs").respond(json={"runs": [RUN], "overdue": overdue})
    assert crawlctl("list").out.splitlines()[-1] == words
    assert crawlctl("list", "-o", "json").json["overdue"] == overdue
    assert crawlctl("list", "-o", "name").out == "7\n"


def test_list_passes_filters_and_follows_pages(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.get("/v1/runs").mock(
        side_effect=[
            httpx.Response(
                200,
                json={
                    "runs": [RUN],
                    "next_page_token": "after-7",
                    "total": 10_001,
                    "total_exact": False,
                },
            ),
            httpx.Response(
                200,
                json={"runs": [COMPLETED | {"run_id": 5}], "next_page_token": None, "total": None},
            ),
        ]
    )
    words = [
        "list",
        "--status",
        "processing",
        "--status",
        "FAILED",
        "--crawler",
        "operations",
        "-o",
        "name",
    ]
    words += [
        "--stage",
        "deployment",
        "--tag",
        "night",
        "--since",
        "24h",
        "--until",
        "2026-11-20",
        "--flow",
        "f",
    ]
    result = crawlctl(*words)
    assert (result.out, result.err) == ("7\n5\n", "2 of more than 10,000; for more: --limit\n")
    first, second = (call.request.url.params for call in route.calls)
    assert first.get_list("status") == ["processing", "FAILED"]
    wanted = {"crawler": "operations", "stage": "deployment", "tag": "night", "flow_id": "f"}
    wanted |= {"created_from": "2026-11-19T12:00:00Z", "created_until": "2026-11-20T00:00:00Z"}
    assert {name: first[name] for name in wanted} == wanted
    assert second["page_token"] == "after-7"


def test_an_empty_list_says_what_to_do(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs").respond(json={"runs": []})
    result = crawlctl("list")
    assert (result.code, result.out) == (0, "")
    assert "crawlctl crawler list" in result.err


def test_describe_tells_every_stop_by_whom_and_why(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    asked: dict[str, object] = {
        "attempt": 1,
        "requested_by": "eve",
        "reason": "wrong site",
        "force": False,
    }
    asked |= {"requested_at": "2026-11-20T11:55:00Z", "acted_at": "2026-11-20T11:55:01Z"}
    forced = asked | {
        "requested_by": "bob",
        "reason": "does not end",
        "force": True,
        "acted_at": None,
    }
    # The intent merges them: the first person's reason and time, and the second one's force.
    stop = asked | {"force": True}
    _run_page(
        gateway,
        COMPLETED | {"attempt": 2, "stop": stop, "cancellations": [asked, forced | {"attempt": 2}]},
    )
    out = crawlctl("describe", "7").out
    assert "attempt 1: stop asked for 5 min ago by eve: wrong site; acted on 4 min 59 s ago" in out
    assert "force-stop asked for 5 min ago by bob: does not end; not acted on yet" in out
    assert "force-stop asked for 5 min ago by eve" not in out


def test_what_a_run_waits_for_reads_as_a_sentence(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    _run_page(
        gateway,
        RUN | {"waiting": "the cluster has not answered for 4 min: 503", "poll_error": "503"},
    )
    out = crawlctl("describe", "7").out
    assert re.search(r"^waiting +the cluster has not answered for 4 min: 503$", out, re.M)
    assert out.count("503") == 1, "told once"


def test_an_end_may_wait_for_its_delivery(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    _run_page(
        gateway, COMPLETED | {"waiting": "the supporting files are not archived yet: disk full"}
    )
    assert "the supporting files are not archived yet: disk full" in crawlctl("describe", "7").out


def test_control_characters_of_data_never_reach_the_terminal(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/logs").respond(text="one\x1b]0;title\x07\ntwo\r\n")
    for words in (
        ("tasks", "7"),
        ("tasks", "7", "-o", "json"),
        ("tasks", "7", "-o", "yaml"),
        ("logs", "7"),
    ):
        out = crawlctl(*words).out
        assert out
        assert all(c.isprintable() or c in "\n\t" for c in out)


def test_yaml_escapes_what_nobody_sees_and_loses_nothing() -> None:
    invisible = "a\u202eb\u2066c\u200e\x9b\x1b\u2028\U000e0041d"
    document = {
        "word": invisible,
        invisible: ["two\nlines " + invisible, "zürich 東京", "plain\ntext"],
        "n": 7,
    }
    shown = as_yaml(document)
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert yaml.safe_load(shown) == document
    assert "zürich 東京" in shown


def test_a_crawler_that_is_not_there(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/crawlers").respond(json={"crawlers": [CRAWLER]})
    result = crawlctl("crawler", "describe", "nothing")
    assert result.code == 3
    assert "crawlctl crawler list" in result.err


def test_quiet_leaves_only_data(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    _run_page(gateway, COMPLETED)
    result = crawlctl("-q", "describe", "7", "-o", "json")
    assert result.err == ""
    assert json.loads(result.out)["run_id"] == 7


@pytest.mark.parametrize(
    ("status", "outcome", "ended_by", "word"),
    [
        ("FAILED", "cancelled", "person", "stopped"),
        ("FAILED", "cancel_timeout", "person", "stopped"),
        ("FAILED", "cancelled", "crawler", "FAILED"),
        ("FAILED", "cancelled (stalled)", "limit", "FAILED"),
        ("FAILED", "failed", "crawler", "FAILED"),
        ("STOPPING", None, None, "STOPPING"),
        ("COMPLETED", "cancelled", "crawler", "COMPLETED"),
    ],
)
def test_a_run_that_somebody_stopped_looks_like_no_failure(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    status: str,
    outcome: str | None,
    ended_by: str | None,
    word: str,
) -> None:
    """For people; JSON contains what is on record."""
    run = COMPLETED | {"status": status, "outcome": outcome, "ended_by": ended_by}
    gateway.get("/v1/runs").mock(
        return_value=httpx.Response(200, json={"runs": [run], "next_page_token": None})
    )
    shown = crawlctl("list", "-o", "table").out.splitlines()[1].split()
    assert word in shown
    assert (status in shown) == (word == status)
    (told,) = json.loads(crawlctl("list", "-o", "json").out)["runs"]
    assert (told["status"], told["outcome"]) == (status, outcome)


@pytest.mark.parametrize("run", [COMPLETED, FAILED, STOPPED])
def test_what_never_executed_has_no_log_to_poll_at(
    gateway: respx.MockRouter, crawlctl: Crawlctl, run: dict[str, object]
) -> None:
    """The main task is the first by index, whatever its id is after a resume."""
    tasks = [TASKS[1] | {"task_index": 1}, TASKS[0] | {"task_id": 90, "task_index": 0}]
    _run_page(gateway, run)
    for started, offered in (
        ("2026-11-20T11:50:04Z", "crawlctl logs 7"),
        (None, "crawlctl timeline 7"),
    ):
        gateway.get("/v1/runs/7/tasks").respond(
            json={"tasks": [tasks[0], tasks[1] | {"started_at": started}]}
        )
        assert f"next: {offered} · crawlctl resume 7" in crawlctl("describe", "7").err


def test_a_crawler_is_described_with_the_meanings_of_its_ends(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    ends = {"like": "wget", "success": [8], "final": None, "retry": None, "failed_words": None}
    gateway.get("/v1/crawlers").respond(json={"crawlers": [CRAWLER | {"ends": ends}]})
    assert (
        "\nends       like: wget, success: 8\n"
        in crawlctl("crawler", "describe", CRAWLER["name"]).out
    )


def test_a_run_that_could_not_be_deployed_is_not_just_resumed() -> None:
    failed = {"run_id": 5, "status": "FAILED", "outcome": "deploy_failed"}
    assert next_steps(failed) == [
        "crawlctl timeline 5",
        "correct the cause, then crawlctl resume 5",
    ]
    assert next_steps(failed | {"outcome": "failed"})[1] == "crawlctl resume 5"
