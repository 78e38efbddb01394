"""The forms that start managers and graphs: typed fields, a message next to each wrong one, one
start per form.
"""

from __future__ import annotations

import html
import re
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.features.managers.domain.manager import BUILT_IN, JobState
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.user_code import loading
from crawler_lifecycle.gateway.ui.parts.forms import USED
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_put_forms import filled

OPTIONS: list[dict[str, Any]] = [
    {"name": "--program", "aliases": ["-g"], "type": "str", "required": False, "default": None},
    {"name": "shop", "help": "Which shop.", "type": "str", "required": True},
    {
        "name": "-n",
        "aliases": ["--most"],
        "help": "Default: %(default)s",
        "type": "int",
        "default": 7,
    },
    {"name": "--share", "type": "float", "default": 0.5},
    {"name": "--tries", "type": "_whole", "default": 0},
    {"name": "--deep", "type": "flag", "default": False},
    {"name": "--mode", "type": "str", "choices": ["fast", "slow <b>"], "default": "fast"},
    {"name": "--label", "type": "str", "several": "repeated", "default": []},
    {"name": "--days", "type": "int", "several": "together"},
    {"name": "--spider-args", "type": "str", "default": "{}"},
    {"name": "--flow-id", "type": "str"},
]
SHOPS = UserCodeRow("shops:Shops", "manager", "shops", "Every <b>shop</b>", "f", OPTIONS)
BROKEN = UserCodeRow("shops:Old", "manager", None, "", "f", error="ImportError: <i>")
PARAMETERS: list[dict[str, Any]] = [
    {"name": "day", "type": "str", "required": True},
    {"name": "most", "type": "int", "default": 3},
    {"name": "dry", "type": "bool", "default": False},
    {"name": "where", "type": "json"},
]
NIGHTLY = UserCodeRow("shops:nightly", "graph", "nightly", "All of it", "f", PARAMETERS)
GOOD = {"plan": "shops:Shops", "opt-shop": "de"}
GRAPH = {"plan": "shops:nightly", "opt-day": "monday"}


@pytest.fixture(autouse=True)
def registered(harness: Harness) -> None:
    each = UserCodeRow(
        BUILT_IN, "manager", "each", "", "f", loading.options(loading.load(BUILT_IN))
    )
    module = UserCodeRow("shops", "module", None, "", "f")
    harness.store.user_code.register_user_code("w", [SHOPS, BROKEN, NIGHTLY, module, each])


def send(browser: TestClient, kind: str, **fields: Any) -> Any:
    return browser.post(f"/start/{kind}", data={"key": uuid.uuid4().hex, **fields})


def wrong(answer: Any) -> dict[str, str]:
    found = re.findall(r'<span class="bad" id="wrong-([^"]+)">(.*?)</span>', answer.text)
    return {name: html.unescape(text) for name, text in found}


def test_a_manager_begins_with_every_kind_of_option_and_once(
    harness: Harness, browser: TestClient
) -> None:
    form = filled(browser.get("/start/manager?plan=shops:Shops"))
    given = {
        **form,
        **{
            "opt-shop": "de",
            "opt---most": "9",
            "opt---share": "1.5",
            "opt---deep": "yes",
            "opt---mode": "slow <b>",
        },
        **{
            "opt---label": "a b\r\n-c",
            "opt---days": "1\r\n2",
            "opt---spider-args": '{"page": ["1"]}',
        },
        **{"name": "night", "flow_id": "f-1", "tags": "x, y"},
    }
    first, again = (browser.post("/start/manager", data=given) for _ in range(2))
    assert first.headers.get("location") == again.headers.get("location") == "/managers/1", wrong(
        first
    )
    row = harness.manager(1)
    words = [
        "de",
        "--most=9",
        "--share=1.5",
        "--deep",
        "--mode=slow <b>",
        "--label=a b",
        "--label=-c",
        "--days",
        "1",
        "2",
    ]
    assert row.options["argv"] == [*words, '--spider-args={"page": ["1"]}']
    assert (row.name, row.flow_id, row.tags) == ("night", "f-1", ["x", "y"])
    assert harness.store.managers.get_manager(2) is None


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        ({"opt-shop": ""}, "opt-shop", "missing"),
        ({"opt-shop": "-x"}, "opt-shop", "cannot begin with -"),
        ({"opt---most": "many"}, "opt---most", "give a whole number"),
        ({"opt---most": "9" * 30}, "opt---most", "give a whole number"),
        ({"opt---tries": "1.5"}, "opt---tries", "give a whole number"),
        ({"opt---share": "nan"}, "opt---share", "give a number"),
        ({"opt---mode": "odd"}, "opt---mode", "known: fast"),
        ({"opt---days": "1\r\nx"}, "opt---days", "give a whole number"),
        ({"opt---spider-args": "[1]"}, "opt---spider-args", "give a JSON object"),
        ({"opt---spider-args": "{" * 5000}, "opt---spider-args", "give a JSON object"),
        ({"opt---label": "x" * 9000}, "opt---label", "8192"),
        ({"opt-shop": "a\0b"}, "opt-shop", "NUL"),
        ({"opt---gone": "1"}, "plan", "this option is gone"),
        ({"plan": "shops:Old"}, "plan", "no longer registered by any worker"),
        ({"name": "a b"}, "name", "a b"),
        ({"flow_id": "a b"}, "flow_id", "a b"),
        ({"tags": "NAME=x"}, "tags", "give the fields name"),
        ({"project": "A B"}, "project", "A B"),
        ({"key": "1"}, "key", "load the form again"),
    ],
)
def test_a_wrong_field_of_a_manager_is_named_and_what_was_typed_is_kept(
    harness: Harness, browser: TestClient, given: dict[str, str], field: str, sentence: str
) -> None:
    sent = {**GOOD, "tags": "<kept>", "name": "kept", **given}
    answer = send(browser, "manager", **sent)
    assert answer.status_code == 422, answer.headers
    told = wrong(answer)
    assert sentence in told.get(field, "") or (
        field == "plan" and sentence in html.unescape(answer.text)
    ), told
    if "plan" not in given and "opt---gone" not in given and "key" not in given:
        again = filled(answer)
        assert {
            name: value
            for name, value in sent.items()
            if value and again.get(name) not in (value, "")
        } == {}
    assert harness.store.managers.get_manager(1) is None
    both = send(browser, "manager", **GOOD | {"opt---most": "x", "opt---share": "y"})
    assert {"opt---most", "opt---share"} <= wrong(both).keys(), "all of them at once"


def test_the_built_in_manager_begins_with_its_jobs(harness: Harness, browser: TestClient) -> None:
    form = filled(browser.get(f"/start/manager?plan={BUILT_IN}")) | {
        "opt-spider": "plain",
        "seal": "yes",
    }
    for given, field, sentence in [
        ({"jobs": '{"page": "1"}\r\n[2]'}, "jobs", "line 2"),
        ({"jobs": '{"pages": "1"}'}, "jobs", "pages"),
        ({"opt---spider-args": '{"pages": 1}'}, "opt---spider-args", "unknown argument"),
        ({"opt---max-per-key": "page"}, "opt---max-per-key", "NAME=VALUE"),
        ({"opt---max-running-jobs": "0"}, "opt---max-running-jobs", "greater than"),
        ({"opt-spider": "gone"}, "opt-spider", "known:"),
    ]:
        answer = browser.post("/start/manager", data=form | given)
        assert sentence in wrong(answer).get(field, ""), (given, wrong(answer))
    assert harness.store.managers.get_manager(1) is None
    given = {
        "jobs": '{"page": "1"}\r\n\r\n{"page": 2}',
        "opt---retries": "2",
        "opt---max-per-key": "page=1",
    }
    first, again = (browser.post("/start/manager", data=form | given) for _ in range(2))
    assert first.headers.get("location") == again.headers.get("location") == "/managers/1", wrong(
        first
    )
    row = harness.manager(1)
    assert (row.sealed, row.counts.by_state[JobState.QUEUED], row.name) == (True, 2, "plain")
    assert row.options["argv"][:5] == ["plain", "--max-running-jobs", "10", "--retries", "2"]


def test_jobs_are_rows_with_the_fields_of_their_crawler(
    harness: Harness, browser: TestClient
) -> None:
    """As without JavaScript: each button submits the form, which comes back with its rows."""
    form = filled(browser.get(f"/start/manager?plan={BUILT_IN}"))

    def pressed(button: str, **given: str) -> dict[str, str]:
        answer = browser.post("/start/manager", data={**form, **given, "show": button})
        assert (answer.status_code, wrong(answer)) == (200, {})
        return dict(filled(answer))

    form = pressed("yes", **{"opt-spider": "plain"})
    assert {"job1.page", "seal"} <= form.keys()
    form = pressed("add", **{"job1.page": "1"})
    form = pressed("add", **{"job2.page": "gone"})
    form = pressed("remove 2", **{"job3.page": "3"})
    assert (form["rows"], form["job1.page"], form["job2.page"]) == ("2", "1", "3")
    assert harness.store.managers.get_manager(1) is None

    both = {"job1.pages": "x", "job2.color": "y", "opt---retries": "many", "jobs": "[1]"}
    refused = browser.post("/start/manager", data=form | both)
    assert refused.status_code == 422
    assert wrong(refused).keys() == both.keys(), "all mistakes at once, each at its field"
    assert {name: filled(refused)[name] for name in both} == both
    assert browser.post("/start/manager", data=form | {"job21.page": "1"}).status_code == 422

    answer = browser.post("/start/manager", data=form | {"jobs": '{"page": "4"}'})
    assert answer.status_code == 303, wrong(answer)
    jobs = harness.store.managers.list_jobs(1, 0, 10)
    assert [one.job.spider_args["page"] for one in jobs if one.job] == ["1", "3", "4"]


def test_rows_of_jobs_are_bounded(browser: TestClient) -> None:
    form = {"plan": BUILT_IN, "key": uuid.uuid4().hex, "opt-spider": "plain"}
    for rows, shown in (("19", 20), ("20", 20), ("999", 20), ("x", 2), ("0", 2)):
        answer = browser.post("/start/manager", data=form | {"rows": rows, "show": "add"})
        assert filled(answer)["rows"] == str(shown), rows
        assert ('value="add"' in answer.text) is (shown < 20)
    last = browser.post("/start/manager", data=form | {"rows": "1", "show": "remove 1"})
    assert filled(last)["rows"] == "1"


def test_a_graph_begins_with_the_function_that_builds_it(
    harness: Harness, browser: TestClient
) -> None:
    form = filled(browser.get("/start/graph?plan=shops:nightly"))
    typed = {
        "opt-day": "monday",
        "opt-most": "4",
        "opt-dry": "true",
        "opt-where": '["a"]',
        "max_parallel": "2",
    }
    first, again = (browser.post("/start/graph", data=form | typed) for _ in range(2))
    assert (
        first.headers.get("location") == again.headers.get("location") == f"/graphs/{form['key']}"
    ), wrong(first)
    (row,) = harness.store.graphs.newest()
    (step,), (graft,) = (
        harness.store.graphs.list_steps(row.graph_id),
        harness.store.graphs.given(row.graph_id, [0]),
    )
    args = {"day": "monday", "most": 4, "dry": True, "where": ["a"]}
    assert step.job == {"call": "shops:nightly", "style": "plain", "args": args}
    assert (row.name, row.options.max_parallel, graft.graft) == ("nightly", 2, True)


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        ({"opt-day": ""}, "opt-day", "missing"),
        ({"opt-dry": "perhaps"}, "opt-dry", "give true or false"),
        ({"opt-where": "{1"}, "opt-where", "as JSON"),
        ({"id": " x"}, "id", "white space"),
        ({"id": "x" * 300}, "id", "200"),
        ({"max_parallel": "no"}, "max_parallel", "integer"),
        ({"plan": "json", "opt-day": "", "steps": "{}"}, "steps", "a JSON list"),
        ({"plan": "json", "opt-day": "", "steps": '[{"path": "a"}]'}, "steps", "kind"),
        (
            {"plan": "json", "opt-day": "", "steps": "[]", "context": "1"},
            "context",
            "a JSON object",
        ),
    ],
)
def test_a_wrong_field_of_a_graph_is_named(
    harness: Harness, browser: TestClient, given: dict[str, str], field: str, sentence: str
) -> None:
    answer = send(browser, "graph", **GRAPH | given)
    assert (answer.status_code, sentence in wrong(answer).get(field, "")) == (422, True), wrong(
        answer
    )
    assert harness.store.graphs.newest() == []


def test_a_graph_begins_from_its_steps_as_json(harness: Harness, browser: TestClient) -> None:
    steps = '[{"path": "poll", "kind": "crawl", "job": {"crawler": "plain"}}]'
    answer = send(
        browser, "graph", plan="json", steps=steps, context='{"day": 1}', id="a b", fail_fast="yes"
    )
    assert answer.headers.get("location") == "/graphs/a%20b", wrong(answer)


@pytest.mark.parametrize(
    ("address", "page", "first", "then"),
    [
        ("/runs/new", "?crawler=plain", {"arg.page": "1"}, {"arg.page": "2"}),
        ("/start/manager", "?plan=shops:Shops", {"opt-shop": "de", "name": "a"}, {"opt-shop": "f"}),
        ("/start/graph", "?plan=shops:nightly", {"opt-day": "monday"}, {"opt-day": "tuesday"}),
    ],
)
def test_a_form_whose_key_was_used_for_something_else_gets_a_new_one(
    browser: TestClient, address: str, page: str, first: dict[str, str], then: dict[str, str]
) -> None:
    form = filled(browser.get(address + page)) | first
    started, again = (browser.post(address, data=form) for _ in range(2))
    assert started.headers["location"] == again.headers["location"], wrong(again)
    refused = browser.post(address, data=form | then)
    assert (refused.status_code, USED in refused.text) == (422, True)
    shown = filled(refused)
    assert shown["key"] != form["key"]
    assert {name: shown[name] for name in then} == then, "nothing that was typed is lost"
    third = browser.post(address, data=shown)
    assert third.status_code == 303, wrong(third)
    assert third.headers["location"] != started.headers["location"]


def test_an_own_id_that_is_taken_is_refused_at_its_field(browser: TestClient) -> None:
    form = filled(browser.get("/start/graph?plan=shops:nightly")) | {"opt-day": "1", "id": "own"}
    browser.post("/start/graph", data=form)
    refused = browser.post("/start/graph", data=form | {"opt-day": "2"})
    assert wrong(refused).keys() == {"id"}
    assert filled(refused)["key"] == form["key"]


def test_what_workers_report_is_never_trusted(harness: Harness, browser: TestClient) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"name": "<b>"},
        {"name": "--x", "type": 7, "choices": [1, None], "help": ["<i>"]},
    ]
    odd += [
        {
            "name": "--y",
            "default": {"a": [1]},
            "aliases": None,
            "type": "json",
            "required": "no",
            "several": "odd",
        }
    ]
    harness.store.user_code.register_user_code(
        "odd", [UserCodeRow("odd:Odd", "manager", None, "<s>", "f", odd)]
    )
    page = browser.get("/start/manager?plan=odd:Odd")
    assert page.status_code == 200
    assert not re.search("<[bis]>", page.text.partition("<main")[2])
    assert "ImportError: &lt;i&gt;" in page.text
    assert "No worker has registered" in browser.get("/start/manager?plan=shops:Gone").text
