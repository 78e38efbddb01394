"""Requests, limits, statuses and verdicts of runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.domain import errors, names, polling_schedule
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    CrawlerKind,
    check_tasks,
    effective_args,
)
from crawler_lifecycle.domain.resources import parse_cpu, parse_memory
from crawler_lifecycle.domain.run import (
    ChildTask,
    EndedTasks,
    RunRequest,
    RunStatus,
    StopIntent,
    pages_per_minute,
    run_may_become,
    verdict,
)

REQUEST = TypeAdapter(RunRequest)
T0 = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("body", "names_the_field"), [
    ('{}', "crawler: missing"),
    ('{"crawler": "Not A Name"}', "crawler: 'Not A Name'"),
    ('{"crawler": "a", "colour": 1}', "colour"),
    ('{"crawler": "a", "args": {"n": 1}}', "args.n"),
    ('{"crawler": "a", "trigger": "cron"}', "trigger"),
    ('{"crawler": "a", "limits": {"run_timeout_s": -1}}', "limits.run_timeout_s: -1"),
    ('{"crawler": "a", "limits": {"run_timeout_s": NaN}}', "limits.run_timeout_s"),
    ('{"crawler": "a", "limits": {"stop_grace_s": Infinity}}', "limits.stop_grace_s"),
    ('{"crawler": "a", "limits": {"grace": 1}}', "limits.grace"),
    ('{"crawler": "a", "priority": 6}', "priority: 6"),
    ('{"crawler": "a", "max_parallel_tasks": 0}', "max_parallel_tasks: 0"),
    ('{"crawler": "a", "poll_minutes": []}', "poll_minutes"),
    ('{"crawler": "a", "poll_minutes": [1, 0]}', "poll_minutes[1]: 0"),
    ('{"crawler": "a", "tasks": []}', "tasks: []"),
    ('{"crawler": "a", "request_id": ""}', "request_id: ''"),
    ('{"crawler": "a", "rerun": true}', "rerun: True"),
    ('{"run_id": 0}', "run_id: 0"),
    ('{"crawler": "a", "resources": {"memory": "lots"}}', "resources.memory: 'lots'"),
    ('{"crawler": "a", "resources": {"cpu": "-1"}}', "resources.cpu: '-1'"),
    ('{"crawler": "a", "parent": ""}', "parent: ''"),
])  # fmt: skip
def test_a_bad_request_is_refused_by_name(body: str, names_the_field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        REQUEST.validate_json(body)
    assert names_the_field in str(caught.value)


def test_inline_tasks_have_a_limit_in_number_and_in_bytes() -> None:
    assert len(REQUEST.validate_python({"crawler": "a", "tasks": [{}] * 500}).tasks or []) == 500
    with pytest.raises(ValidationError, match="501 inline tasks"):
        REQUEST.validate_python({"crawler": "a", "tasks": [{}] * 501})
    with pytest.raises(ValidationError, match="bytes of inline tasks"):
        REQUEST.validate_python({"crawler": "a", "tasks": [{"args": {"x": "y" * 1000}}] * 200})


def test_a_request_survives_its_own_json() -> None:
    text = (
        '{"crawler": "a", "tasks": [{"args": {"k": "v"}}], "due_at": "2026-11-20T12:00:00Z", "poll_minutes": [0.05],'
        ' "limits": {"run_timeout_s": 60}, "resources": {"memory": "1Gi"}, "tags": ["x"], "trigger": "api"}'
    )
    request = REQUEST.validate_json(text)
    assert REQUEST.validate_json(REQUEST.dump_json(request)) == request
    assert request.limits.force_stop_after_s == 300


@pytest.mark.parametrize(
    ("text", "number"), [("512Mi", 536870912), ("1G", 10**9), ("1024", 1024), ("1.5Gi", 1610612736)]
)
def test_memory_quantities(text: str, number: int) -> None:
    assert parse_memory(text) == number


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), ("2", 2.0), ("0.25", 0.25)])
def test_cpu_quantities(text: str, number: float) -> None:
    assert parse_cpu(text) == pytest.approx(number)


def test_run_statuses_only_go_forwards() -> None:
    order = [RunStatus.INITIALIZING, RunStatus.PROCESSING, RunStatus.STOPPING]
    for a, b in itertools.combinations(order, 2):
        assert run_may_become(a, b)
        assert not run_may_become(b, a)
    for end in (RunStatus.COMPLETED, RunStatus.FAILED):
        assert all(run_may_become(s, end) for s in order)
        assert not any(run_may_become(end, s) for s in RunStatus)


# --- verdict --------------------------------------------------------------------------------------

DONE, FAILED = (
    EndedTasks("SUCCEEDED", "finished", 2),
    EndedTasks("FAILED", "banned", 1, "The site banned the crawler"),
)
PERSON = StopIntent(T0, requested_by="ada", reason="enough")


@pytest.mark.parametrize(("groups", "stop", "partial_ok", "expected"), [
    ([DONE], None, False, ("COMPLETED", "finished")),
    ([DONE], PERSON, False, ("COMPLETED", "finished")),
    ([EndedTasks("SUCCEEDED", "closespider_itemcount", 3)], None, False, ("COMPLETED", "closespider_itemcount")),
    ([DONE, EndedTasks("SUCCEEDED", "time_limit", 1)], None, False, ("COMPLETED", "finished")),
    ([FAILED], None, False, ("FAILED", "banned")),
    ([DONE, FAILED], None, False, ("FAILED", "partial")),
    ([DONE, FAILED], None, True, ("COMPLETED", "partial")),
    ([FAILED, EndedTasks("LOST", "lost", 1)], None, True, ("FAILED", "failed")),
    ([DONE, EndedTasks("CANCELLED", "cancelled", 1)], PERSON, True, ("FAILED", "cancelled")),
    ([FAILED], PERSON, False, ("FAILED", "cancelled")),
    ([EndedTasks("FAILED", "timed_out", 2)], StopIntent(T0, limit="timed_out"), False, ("FAILED", "timed_out")),
    ([EndedTasks("FAILED", "deploy_failed", 1)], None, False, ("FAILED", "deploy_failed")),
])  # fmt: skip
def test_verdicts(
    groups: list[EndedTasks], stop: StopIntent | None, partial_ok: bool, expected: tuple[str, str]
) -> None:
    found = verdict(groups, stop, partial_ok=partial_ok)
    assert (found.status, found.outcome) == expected
    assert found.cause


@pytest.mark.parametrize(
    "groups", [[], [EndedTasks("RUNNING", None, 1)], [DONE, EndedTasks("QUEUED", None, 1)]]
)
def test_no_verdict_while_anything_is_alive(groups: list[EndedTasks]) -> None:
    with pytest.raises(ValueError, match="all ended"):
        verdict(groups, None)


groups = st.builds(
    EndedTasks,
    st.sampled_from(["SUCCEEDED", "FAILED", "CANCELLED", "LOST"]),
    st.sampled_from(["finished", "failed", "lost", "banned"]),
    st.integers(1, 5),
)


@given(st.lists(groups, min_size=1, max_size=6), st.booleans())
def test_a_verdict_does_not_depend_on_the_order(found: list[EndedTasks], ok: bool) -> None:
    one, other = (
        verdict(found, None, partial_ok=ok),
        verdict(list(reversed(found)), None, partial_ok=ok),
    )
    assert (one.status, one.outcome) == (other.status, other.outcome)
    assert one.status.terminal


# --- stops, cadence, names, arguments -------------------------------------------------------------


def test_stops_merge_to_all_force_and_the_time_and_words_of_the_first_unless_a_person_follows_a_limit() -> (
    None
):
    later = T0 + timedelta(seconds=5)
    limit, person = (
        StopIntent(T0, limit="timed_out"),
        StopIntent(T0, requested_by="ada", reason="enough"),
    )
    forced = StopIntent(later, force=True, requested_by="bob", reason="now")
    assert person.merged(forced) == replace(person, force=True)
    assert limit.merged(forced) == replace(forced, requested_at=T0)
    assert person.merged(StopIntent(later, limit="start_timeout")) == person
    given_up = StopIntent(
        later, force=True, requested_by="the audit", reason="lost", limit="failed", escalated=True
    )
    assert limit.merged(given_up) == replace(limit, force=True, escalated=True)


def test_the_ladder() -> None:
    assert [polling_schedule.poll_interval(n, None) / 60 for n in range(8)] == [
        1,
        2,
        3,
        5,
        8,
        15,
        15,
        15,
    ]
    assert [polling_schedule.poll_interval(n, [0.05, 0.1]) for n in range(3)] == [3.0, 6.0, 6.0]
    assert polling_schedule.poll_interval(0, [0.001]) == 1.0
    assert polling_schedule.poll_interval(0, [0.001], last_poll_seconds=4) == 8.0
    assert [polling_schedule.start_check_interval(n, 6) for n in (1, 10, 11, 12)] == [6, 6, 9, 13.5]
    assert polling_schedule.start_check_interval(500, 6) == 60
    assert polling_schedule.start_check_interval(99, 120) == 120


def test_names_are_stable_and_fit() -> None:
    assert names.workflow_id("services", "r1") == "crawl/services/r1"
    assert names.cluster_name(7, 3, 2) == "crawl-7-3-2"
    assert len(names.cluster_name(2**53, 99999, 999)) <= 52
    assert names.fairness_key("graph-7") == "graph-7"
    # A server refuses more than 64 bytes.
    assert names.fairness_key("x" + "é" * 100) == "x" + "é" * 31


def test_what_no_retry_can_mend_is_told_apart_by_type() -> None:
    final = errors.not_retryable()
    assert "RunNotFound" in final
    assert "Fenced" in final
    assert "SchedulerUnavailable" not in final
    kinds = errors._subclasses(errors.LifecycleError)
    # An adapter's own kinds have one of these codes.
    own = [cls for cls in kinds if cls.__module__ == errors.__name__]
    assert len({cls.code for cls in own}) == len(own)
    assert all(cls.code == cls.__name__ for cls in own)
    assert {cls.code for cls in kinds} == {cls.code for cls in own}


def test_arguments_are_layered_and_checked() -> None:
    crawler = CrawlerDefinition(
        "c", args={"site": Argument(required=True), "n": Argument(default="1")}
    )
    assert effective_args(crawler, {"site": "s"}, {"n": "2"}) == {"site": "s", "n": "2"}
    with pytest.raises(errors.InvalidRequest, match=r"args.site: missing"):
        effective_args(crawler, {})
    with pytest.raises(errors.InvalidRequest, match=r"args.page: unknown argument"):
        effective_args(crawler, {"site": "s", "page": "1"})
    with pytest.raises(errors.InvalidRequest, match="NUL"):
        effective_args(crawler, {"site": "a\0b"})


def test_every_crawler_may_be_told_which_retry_it_is() -> None:
    assert effective_args(CrawlerDefinition("c"), {"retry_num": "2"}) == {"retry_num": "2"}
    with pytest.raises(
        errors.InvalidRequest, match=r"args.retry_num: 'often' is not allowed; give a whole number"
    ):
        effective_args(CrawlerDefinition("c"), {"retry_num": "often"})
    declared = CrawlerDefinition("c", args={"retry_num": Argument(choices=["few", "many"])})
    assert effective_args(declared, {"retry_num": "few"}) == {"retry_num": "few"}, (
        "its own declaration holds"
    )


def test_a_task_carries_so_much_and_no_more() -> None:
    """Arguments and settings of run, task and catalogue together, as the JSON that the process
    gets.
    """
    half = {"a": "x" * 32_000}
    RunRequest(crawler="c", args=half, settings={"b": "x" * 33_000})
    with pytest.raises(
        errors.InvalidRequest, match=r"^settings: 66018 bytes of arguments and settings"
    ):
        RunRequest(crawler="c", args=half, settings={"b": "x" * 34_000})
    with pytest.raises(
        errors.InvalidRequest, match=r"^args: .* at most 65536 are allowed\. Divide them"
    ):
        RunRequest(crawler="c", args={"a": "é" * 11_000})  # six bytes each
    own = ChildTask({"b": "x" * 40_000})
    with pytest.raises(errors.InvalidRequest, match=r"^tasks\[1\]\.args: "):
        RunRequest(crawler="c", args=half, tasks=[ChildTask(), own])
    # Instead of the run's.
    RunRequest(crawler="c", args=half, tasks=[ChildTask({"a": "x" * 40_000})])

    crawler = CrawlerDefinition("c", args={"a": Argument(default="x" * 40_000), "b": Argument()})
    check_tasks(crawler, {}, {}, [{"a": "1", "b": "x" * 60_000}])
    with pytest.raises(errors.InvalidRequest, match=r"^tasks\[1\]\.args: "):
        check_tasks(crawler, {}, {}, [{}, {"b": "x" * 30_000}])
    with pytest.raises(errors.InvalidRequest, match=r"^args: "):
        check_tasks(replace(crawler, settings={"s": "x" * 20_000}), {"b": "x" * 10_000}, {}, None)
    with pytest.raises(errors.InvalidRequest, match=r"^c: settings: "):
        CrawlerDefinition("c", settings={"s": "x" * 70_000})


def test_a_definition_refuses_what_cannot_work() -> None:
    with pytest.raises(errors.InvalidRequest, match="command: missing"):
        CrawlerDefinition("c", kind=CrawlerKind.COMMAND)
    with pytest.raises(errors.InvalidRequest, match=r"env.LD_PRELOAD"):
        CrawlerDefinition("c", env={"LD_PRELOAD": "x"})
    with pytest.raises(errors.InvalidRequest, match="stop_signal: 'SIGKILL'"):
        CrawlerDefinition("c", stop_signal="SIGKILL")
    with pytest.raises(errors.InvalidRequest, match=r"limits.grace"):
        CrawlerDefinition("c", limits={"grace": 1.0})


def test_tasks_that_would_all_do_the_same_are_refused_where_the_crawler_splits_nothing() -> None:
    args = {"page": Argument(default="1")}
    for splits in (None, True):
        check_tasks(
            CrawlerDefinition("site", project="p", args=args, splits=splits), {}, {}, [{}, {}]
        )
    site = CrawlerDefinition("site", project="p", args=args, splits=False)
    check_tasks(site, {}, {}, [{}])
    check_tasks(site, {}, {}, [{}, {"page": "2"}])
    for same in ([{}, {"page": "2"}, {}], [{"page": "2"}, {}, {"page": "1"}]):
        with pytest.raises(
            ValueError,
            match=r"^tasks\[2\]: the same arguments as tasks\[[01]\], and crawler 'site' ",
        ):
            check_tasks(site, {}, {}, same)


PACE_START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pages", "seconds", "pace"),
    [
        *((120, 60.0, 120.0), (0, 60.0, 0.0), (1, 90.0, 0.7), (5, 1.0, 300.0)),
        *((5, 0.5, None), (5, -60.0, None), (None, 60.0, None), (-1, 60.0, None), (5, None, None)),
    ],
)
def test_pages_per_minute(pages: int | None, seconds: float | None, pace: float | None) -> None:
    until = None if seconds is None else PACE_START + timedelta(seconds=seconds)
    assert pages_per_minute(pages, PACE_START, until) == pace
    assert pages_per_minute(pages, None, until) is None
