"""What the showing verbs write, in each format."""

from __future__ import annotations

import json

import httpx
import pytest
import respx
import yaml
from cli_answers import COMPLETED, CORRECTION, CRAWLER, FAILED, RUN, STOPPED, TASKS, TRANSITION
from cli_support import Crawlctl, check_golden


def _run_page(gateway: respx.MockRouter, run: dict[str, object], *, corrections: list[object] | None = None) -> None:
    gateway.get("/v1/runs/7").respond(json=run)
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/corrections").respond(json={"corrections": corrections or []})


def test_list_as_table(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs").respond(json={"runs": [RUN, FAILED | {"run_id": 6}, COMPLETED | {"run_id": 5}]})
    result = crawlctl("list")
    assert result.code == 0
    check_golden("list.txt", result.out)


@pytest.mark.parametrize(
    "words", [("-o", "json", "list"), ("list", "-o", "json"), ("ls", "-ojson"), ("--output=json", "ls")]
)
def test_list_as_json_with_the_option_anywhere(gateway: respx.MockRouter, crawlctl: Crawlctl, words: list[str]) -> None:
    gateway.get("/v1/runs").respond(json={"runs": [RUN]})
    result = crawlctl(*words)
    assert result.code == 0
    assert result.json == {"runs": [RUN]}


def test_list_as_yaml_and_names(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs").respond(json={"runs": [RUN, COMPLETED | {"run_id": 5}]})
    assert yaml.safe_load(crawlctl("list", "-o", "yaml").out)["runs"][0]["run_id"] == 7
    assert crawlctl("list", "-o", "name").out == "7\n5\n"


def test_list_passes_filters_and_follows_pages(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.get("/v1/runs").mock(
        side_effect=[
            httpx.Response(200, json={"runs": [RUN], "next_page_token": "after-7"}),
            httpx.Response(200, json={"runs": [COMPLETED | {"run_id": 5}], "next_page_token": None}),
        ]
    )
    result = crawlctl("list", "--status", "processing", "--status", "FAILED", "--crawler", "operations", "-o", "name")
    assert result.out == "7\n5\n"
    first, second = (call.request.url.params for call in route.calls)
    assert first.get_list("status") == ["PROCESSING", "FAILED"]
    assert first["crawler"] == "operations"
    assert second["page_token"] == "after-7"


def test_an_empty_list_says_what_to_do(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs").respond(json={"runs": []})
    result = crawlctl("list")
    assert (result.code, result.out) == (0, "")
    assert "crawlctl crawler list" in result.err


@pytest.mark.parametrize(
    ("name", "run"), [("running", RUN | {"waiting_for": "4 of 4 slots in use"}), ("stopped", STOPPED)]
)
def test_describe(gateway: respx.MockRouter, crawlctl: Crawlctl, name: str, run: dict[str, object]) -> None:
    _run_page(gateway, run, corrections=[CORRECTION])
    result = crawlctl("describe", "7")
    assert result.code == 0
    check_golden(f"describe-{name}.txt", result.out + "---\n" + result.err)


def test_describe_as_json_holds_everything(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    _run_page(gateway, COMPLETED, corrections=[CORRECTION])
    document = crawlctl("describe", "7", "-o", "json").json
    assert document["verified_at"] == "2026-11-20T11:59:57Z"
    assert document["task_rows"] == TASKS
    assert document["corrections"] == [CORRECTION]


def test_tasks_corrections_timeline_as_tables(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/corrections").respond(json={"corrections": [CORRECTION]})
    gateway.get("/v1/runs/7/timeline").respond(json={"timeline": [TRANSITION]})
    parts = [crawlctl(*words).out for words in (("ps", "7"), ("corrections",), ("timeline", "7"))]
    check_golden("lists-of-a-run.txt", "---\n".join(parts))


def test_control_characters_of_data_never_reach_the_terminal(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/logs").respond(json={"task_id": 71, "log_tail": "one\x1b]0;title\x07\ntwo\r\n"})
    for words in (("tasks", "7"), ("tasks", "7", "-o", "json"), ("tasks", "7", "-o", "yaml"), ("logs", "7")):
        out = crawlctl(*words).out
        assert out
        assert all(c.isprintable() or c in "\n\t" for c in out)


def test_logs_of_a_task(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.get("/v1/runs/7/logs").respond(json={"task_id": 71, "log_tail": "last words"})
    assert crawlctl("logs", "7", "--task", "71").out == "last words\n"
    assert route.calls.last.request.url.params["task"] == "71"


def test_crawlers(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/crawlers").respond(json={"crawlers": [CRAWLER]})
    check_golden(
        "crawlers.txt", crawlctl("crawler", "list").out + "---\n" + crawlctl("crawler", "describe", "operations").out
    )
    result = crawlctl("crawler", "describe", "nothing")
    assert result.code == 3
    assert "crawlctl crawler list" in result.err


def test_quiet_leaves_only_data(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    _run_page(gateway, COMPLETED)
    result = crawlctl("-q", "describe", "7", "-o", "json")
    assert result.err == ""
    assert json.loads(result.out)["run_id"] == 7
