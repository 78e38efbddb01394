"""The life of graphs, rule by rule (rows of A2 and A3)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.features.graphs.domain.commands import ApproveStep
from crawler_lifecycle.features.graphs.domain.engine import Graph, StepEnd
from crawler_lifecycle.features.graphs.domain.spec import (
    LOST_MAX,
    GraphState,
    StepKind,
    StepSpec,
    StepState,
)
from tests.domain.graph.steps import (
    NOW,
    approval,
    at,
    begin,
    crawl,
    end,
    graph,
    group,
    run,
    states,
    step,
)

S = StepState
DIAMOND = (step("a"), step("b", "a"), step("c", "b"), step("d", "b"), step("e", "c", "d"))


def test_a_diamond_runs_in_order_and_a_dependency_may_stand_behind() -> None:
    one = graph(*DIAMOND)
    assert run(one) == ["a", "b", "c", "d", "e"]
    assert one.state is GraphState.COMPLETED
    assert run(graph(*DIAMOND[::-1])) == ["a", "b", "d", "c", "e"]


def test_dependents_of_a_failed_step_are_cancelled_and_the_rest_goes_on() -> None:
    """O-13, C-10."""
    one = graph(*DIAMOND, step("x"), step("y", "x"))
    run(one, discarded=["b"])
    assert states(one) == {
        **{
            "a": "completed",
            "b": "discarded",
            "c": "cancelled",
            "d": "cancelled",
            "e": "cancelled",
        },
        **{"x": "completed", "y": "completed"},
    }
    assert one.steps[2].reason == 'the dependency "b" was discarded'
    assert one.steps[4].reason == 'the dependency "c" was cancelled'


def test_a_failure_within_a_dependency_is_named() -> None:
    """The grafter itself has completed."""
    one = graph(step("grafts", graft=True), step("after", "grafts"))
    one.pick(NOW, batches=9, begin=9)
    number = begin(one, "grafts")
    one.add([group("deep"), step("deep/bad"), step("good")], number)
    end(one, "grafts")
    run(one, discarded=["grafts/deep/bad"])
    assert states(one)["grafts"] == "completed"
    why = 'the dependency "grafts" was discarded, because "grafts/deep/bad" was'
    assert one.steps[at(one, "after")].reason == why
    assert one.state is GraphState.DISCARDED


@pytest.mark.parametrize(
    ("ends", "ignores", "state"),
    [
        ("cancelled", {"ignore_cancelled": True}, "completed"),
        ("cancelled", {"ignore_discarded": True}, "cancelled"),
        ("discarded", {"ignore_discarded": True}, "completed"),
        ("discarded", {"ignore_cancelled": True}, "cancelled"),
    ],
)
def test_a_step_may_ignore_how_its_dependency_ended(
    ends: str, ignores: dict[str, bool], state: str
) -> None:
    """O-02, O-13: of a step, and of a graph as a dependency."""
    one = graph(
        step("a"), step("b", "a", **ignores), group("g"), step("g/x"), step("c", "g", **ignores)
    )
    run(one, **{ends: ["a", "g/x"]})
    assert (states(one)["b"], states(one)["g"], states(one)["c"]) == (state, ends, state)


def test_a_graph_is_one_node_to_those_around_it() -> None:
    """O-03: its contents wait for its dependencies, and its dependents wait for all its contents."""
    one = graph(
        *(
            step("setup"),
            group("extract", "setup"),
            step("extract/get"),
            step("extract/turn", "get"),
        ),
        *(group("extract/deep", "get"), step("extract/deep/x"), step("done", "extract")),
    )
    assert states(one)["extract/get"] == "suspended"
    assert (
        one.waiting(at(one, "extract/get"))
        == 'its graph "extract" is waiting for "setup" (available)'
    )
    assert run(one) == ["setup", "extract/get", "extract/turn", "extract/deep/x", "done"]
    assert states(one)["extract"] == "completed"


def test_empty_graphs_are_completed_at_once_everywhere() -> None:
    """A3, ambiguity 6; C-11."""
    assert graph().state is GraphState.COMPLETED
    one = graph(
        group("a"), group("b", "a"), group("b/c"), group("b/c/d"), group("e", "b"), step("f", "e")
    )
    assert run(one) == ["f"]
    assert set(states(one).values()) == {"completed"}
    waits = graph(step("x"), group("a", "x"), step("f", "a"))
    assert states(waits) == {"x": "available", "a": "suspended", "f": "suspended"}
    run(waits, discarded=["x"])
    assert states(waits) == {"x": "discarded", "a": "cancelled", "f": "cancelled"}


def test_fail_fast_starts_nothing_more_and_lets_run_what_runs() -> None:
    """C-10."""
    one = graph(step("a"), step("b"), step("c"), step("d", "c"), step("e", "b"), fail_fast=True)
    one.pick(NOW, batches=9, begin=9)
    begin(one, "a")
    begin(one, "b")
    end(one, "a", S.DISCARDED)
    assert states(one) == dict(
        zip("abcde", ["discarded", "executing", *["cancelled"] * 3], strict=True)
    )
    end(one, "b")
    assert states(one)["b"] == "completed"
    assert one.state is GraphState.DISCARDED
    assert one.steps[2].batch is None


def test_a_graft_holds_back_whoever_waits_until_everything_in_it_has_ended() -> None:
    """O-07; oban#1472: nested graphs in a graft do so as well."""
    one = graph(step("notify", graft=True), step("summary", "notify"))
    notify = begin(one, "notify")
    one.add(
        [step("1"), group("more"), step("more/2", graft=True), step("3", "1", "more")], below=notify
    )
    assert states(one)["notify/1"] == "available"
    end(one, "notify")
    assert states(one)["notify"] == "completed"
    assert one.waiting(
        notify
    ) == 'it is waiting for steps in it: "notify/1" (available), "notify/more" (executing), ' + (
        '"notify/3" (suspended)'
    )
    deeper = begin(one, "notify/more/2")
    one.add([step("x")], below=deeper)
    end(one, "notify/more/2")
    assert run(one) == ["notify/1", "notify/more/2/x", "notify/3", "summary"]


@pytest.mark.parametrize("steps", [(), (group("none"),)])
def test_a_graft_of_nothing_is_no_graft(steps: tuple[object, ...]) -> None:
    one = graph(step("notify", graft=True), step("summary", "notify"))
    assert one.add([*steps], below=begin(one, "notify")) is not None  # type: ignore[list-item]
    end(one, "notify")
    assert run(one) == ["summary"]


def test_only_a_step_that_grafts_and_executes_takes_a_graft() -> None:
    one = graph(step("plain"), step("notify", graft=True))
    begin(one, "plain")
    for path in ("plain", "notify"):
        with pytest.raises(
            InvalidRequest, match=f'step "{path}": only an executing step with graft=True'
        ):
            one.add([step("x")], below=at(one, path))
    below = begin(one, "notify")
    with pytest.raises(InvalidRequest, match='there is no step "plain" in its level'):
        one.add([step("x", "plain")], below=below)
    one.add([step("x")], below=below)
    with pytest.raises(InvalidRequest, match='step "notify/x": this name already exists'):
        one.add([step("x")], below=below)
    with pytest.raises(InvalidRequest, match='"notify" accepts no new steps'):
        one.add([step("notify/y")])


def test_a_missing_dependency_is_waited_for_in_sight_and_may_be_appended() -> None:
    """``check_deps=False``; O-02."""
    one = graph(step("a", "late"), step("b", "a"), check_deps=False)
    assert run(one) == []
    assert one.waiting(0) == 'it is waiting for "late", which has not been appended yet'
    with pytest.raises(InvalidRequest, match=r'"a" waits for "late" waits for "b" waits for "a"'):
        one.add([step("late", "b")])
    one.add([step("late")])
    assert run(one) == ["late", "a", "b"]
    one.add([step("more", "b"), step("other", "nobody")])
    assert run(one) == ["more"]
    assert one.state is GraphState.EXECUTING


def test_append_grows_what_has_not_ended() -> None:
    one = graph(group("g"), step("g/x"), step("after", "g"))
    one.add([step("g/y", "x")])
    assert run(one) == ["g/x", "g/y", "after"]
    with pytest.raises(InvalidRequest, match='"g" accepts no new steps'):
        one.add([step("g/z")])
    one.add([step("again", "after")])
    assert one.state is GraphState.EXECUTING
    assert run(one) == ["again"]


def test_cancel_counts_what_had_not_ended_and_takes_dependents_along() -> None:
    """O-11."""
    one = graph(*DIAMOND, step("free"), step("ignores", "c", ignore_cancelled=True))
    begin(one, "a")
    end(one, "a")
    begin(one, "b")
    assert one.cancel([at(one, "c")], "ann said so") == 1
    assert states(one)["e"] == "cancelled"
    assert states(one)["ignores"] == "available"
    assert (one.steps[2].outcome, one.steps[2].reason) == ("cancelled", "ann said so")
    assert one.cancel(None, "enough") == 4  # b, d, free, ignores
    assert one.cancel(None, "enough") == 0
    assert states(one)["a"] == "completed"


def test_what_executes_is_cancelled_at_once_and_proved_later() -> None:
    one = graph(
        crawl("fetch"), step("late", "fetch"), step("always", "fetch", ignore_cancelled=True)
    )
    one.pick(NOW, batches=9, begin=9)
    assert one.cancel([0], "ann said so") == 1
    assert states(one) == {"fetch": "cancelled", "late": "cancelled", "always": "suspended"}
    assert one.steps[0].ending
    assert (
        one.waiting(0)
        == "it was cancelled, and is waiting for proof that none of its work is still running"
    )
    with pytest.raises(InvalidRequest, match='step "fetch": it was cancelled and may still run'):
        one.retry([0], cascade=True)
    end(one, "fetch", S.COMPLETED)
    assert states(one)["fetch"] == "cancelled"
    assert run(one) == ["always"]
    assert one.state is GraphState.CANCELLED


def test_cancelling_a_graph_cancels_what_is_in_it() -> None:
    one = graph(
        group("g"), step("g/a"), group("g/empty", "a"), step("g/b", "empty"), step("z", "g")
    )
    assert one.cancel([0], "no") == 2
    assert set(states(one).values()) == {"cancelled"}


def test_late_ends_change_nothing() -> None:
    one = graph(step("a"), step("b", "a"))
    begin(one, "a")
    one.ended([StepEnd(0, 7, S.DISCARDED)])
    end(one, "a")
    one.changed.clear()
    end(one, "a", S.DISCARDED)
    assert states(one)["a"] == "completed"
    assert not one.changed


def test_retry_lets_a_step_begin_anew_with_a_new_budget() -> None:
    """O-12, O-18, ambiguities 3 and 4: available at once, dependents only with ``cascade``."""
    one = graph(*DIAMOND)
    run(one, discarded=["b"])
    assert one.retry([at(one, "b")], cascade=False) == 1
    assert (one.steps[1].state, one.steps[1].tries, one.steps[1].attempt) == (S.AVAILABLE, 0, 1)
    assert run(one, discarded=["b"]) == ["b"]
    assert states(one)["c"] == "cancelled"
    assert one.retry([at(one, "b")], cascade=True) == 4
    assert run(one) == ["b", "c", "d", "e"]
    assert one.retry(None, cascade=True) == 0
    assert one.retry([at(one, "c")], cascade=True) == 1  # completed: only if it is named
    assert run(one) == ["c"]


def test_retry_of_what_could_not_start_is_refused_with_its_reason() -> None:
    one = graph(step("a"), group("g", "a"), step("g/x"), step("b", "a"))
    run(one, discarded=["a"])
    with pytest.raises(
        InvalidRequest, match=r'step "b": the dependency "a" was discarded; retry that step as well'
    ):
        one.retry([at(one, "b")], cascade=True)
    with pytest.raises(
        InvalidRequest, match=r'step "g/x": the dependency "a" of "g" was discarded'
    ):
        one.retry([at(one, "g/x")], cascade=False)
    assert one.retry([0, at(one, "g/x")], cascade=False) == 2
    assert run(one) == ["a", "g/x"]
    fast = graph(step("a"), step("b"), fail_fast=True)
    run(fast, discarded=["a"])
    with pytest.raises(
        InvalidRequest,
        match=r': the graph fails fast, and "a" was discarded; retry that step as well',
    ):
        fast.retry([1], cascade=False)
    assert fast.retry([0], cascade=True) == 2


def test_retry_cascades_over_graphs_but_spares_what_a_person_cancelled() -> None:
    one = graph(
        step("a"), group("g", "a"), step("g/x"), step("g/y", "x"), step("z", "g"), step("mine", "a")
    )
    one.cancel([at(one, "mine")], "not today")
    run(one, discarded=["a"])
    assert one.retry([0], cascade=True) == 4
    assert run(one) == ["a", "g/x", "g/y", "z"]
    assert states(one)["mine"] == "cancelled"


def test_retry_makes_dependents_that_have_not_begun_wait_again() -> None:
    one = graph(step("a"), step("b", "a"), step("c", "b"))
    begin(one, "a")
    end(one, "a")
    assert one.pick(NOW, batches=9, begin=9).batches[0].steps == (1, 2)
    one.retry([0], cascade=False)
    assert states(one) == {"a": "available", "b": "suspended", "c": "suspended"}
    # Removed from the call that would have begun them.
    assert [one.steps[n].batch for n in (1, 2)] == [None, None]
    assert run(one) == ["a", "b", "c"]


def test_a_call_does_not_go_on_in_a_graph_that_has_to_wait_again() -> None:
    one = graph(step("up"), group("g", "up"), step("g/a"), step("g/b", "a"))
    begin(one, "up")
    end(one, "up")
    assert one.pick(NOW, batches=9, begin=9).batches[0].steps == (2, 3)
    begin(one, "g/a")
    one.retry([0], cascade=False)
    assert states(one) == {
        "up": "available",
        "g": "suspended",
        "g/a": "executing",
        "g/b": "suspended",
    }
    assert [one.steps[n].batch for n in (2, 3)] == [1, None]
    end(one, "g/a")
    assert states(one)["g/b"] == "suspended"
    assert run(one) == ["up", "g/b"]


def test_a_retried_crawl_is_resumed_unless_it_shall_be_fresh() -> None:
    one = graph(crawl("fetch"), StepSpec("stream", StepKind.MANAGER, {"plan": "a:B"}))
    for attempt, fresh, run_id in ((1, False, 7), (2, True, None)):
        one.pick(NOW, batches=9, begin=9)
        for row in one.steps:
            row.run_id = 7
            end(one, row.path, S.DISCARDED, run_attempt=attempt)
            assert row.run_attempt == attempt
        one.retry(None, cascade=True, fresh=fresh)
        assert [row.run_id for row in one.steps] == [run_id, 7]
    assert [row.run_attempt for row in one.steps] == [0, 2]


def test_what_was_lost_with_its_worker_begins_again_a_bounded_number_of_times() -> None:
    """C-20, O-19: a worker's death is not the step's fault, but the step may have caused it."""
    one = graph(step("a"), step("b", "a"))
    for _ in range(1 + LOST_MAX):
        picked = one.pick(NOW, batches=9, begin=9)
        begin(one, "a")
        one.released([batch.number for batch in picked.batches])
    assert states(one) == {"a": "discarded", "b": "cancelled"}
    assert (one.steps[0].outcome, one.steps[0].attempt) == ("lost", 1 + LOST_MAX)


def test_snoozed_and_retried_steps_wait_for_their_time() -> None:
    """O-17: a snooze does not count as a try."""
    later = NOW + timedelta(seconds=30)
    one = graph(step("a"), step("b", not_before=later), step("c", "b", not_before=later))
    begin(one, "a")
    end(one, "a", S.SCHEDULED, not_before=later)
    assert (one.steps[0].state, one.steps[0].tries, one.steps[0].attempt) == (S.SCHEDULED, 0, 1)
    assert one.waiting(0) == "it is waiting for its time at 2026-03-01 12:00:30 UTC"
    picked = one.pick(NOW, batches=9, begin=9)
    assert (picked.again_at, list(picked.batches)) == (later, [])
    picked = one.pick(later, batches=9, begin=9)
    assert picked.again_at is None
    begin(one, "a")
    end(one, "a", S.RETRYABLE, not_before=later + timedelta(seconds=1))
    assert (one.steps[0].state, one.steps[0].tries) == (S.RETRYABLE, 1)
    assert one.retry(None, cascade=False) == 1
    assert one.steps[0].state is S.AVAILABLE


def test_rows_with_ends_that_nobody_has_taken_in_are_taken_in() -> None:
    one = graph(step("a"), step("b", "a"), group("g"), step("g/x"), step("c", "g"), step("d", "b"))
    one.steps[0].state, one.steps[3].state = S.DISCARDED, S.COMPLETED
    again = Graph(one.options, one.steps)
    assert states(again) == {
        **{"a": "discarded", "b": "cancelled", "d": "cancelled"},
        **{"g": "completed", "g/x": "completed", "c": "available"},
    }
    assert again.changed == {1, 2, 4, 5}
    assert again.counts() == {S.DISCARDED: 1, S.CANCELLED: 2, S.COMPLETED: 1, S.AVAILABLE: 1}


def test_the_worst_end_is_the_graph_s() -> None:
    """A3, ambiguity 5: discarded before cancelled before completed."""
    one = graph(step("a"), step("b"), step("c"))
    run(one, cancelled=["a"])
    assert one.state is GraphState.CANCELLED
    one = graph(step("a"), step("b"), step("c"))
    run(one, cancelled=["a"], discarded=["c"])
    assert one.state is GraphState.DISCARDED


@pytest.mark.parametrize("wide", [True, False])
def test_thousands_of_steps_wide_or_deep(wide: bool) -> None:
    """Without recursion, which would fail after a thousand."""
    if wide:
        one = graph(
            step("a"), group("g", "a"), *(step(f"g/{n}") for n in range(4_997)), step("z", "g")
        )
    else:
        one = graph(step("0"), *(step(str(n), str(n - 1)) for n in range(1, 5_000)))
    total = sum(one.counts().values())
    begin(one, one.steps[0].path)
    end(one, one.steps[0].path, S.DISCARDED)
    assert one.counts() == {S.DISCARDED: 1, S.CANCELLED: total - 1}
    assert one.retry([0], cascade=True) == total
    assert one.cancel(None, "no") == total
    assert one.retry(None, cascade=False) == total
    one.steps[0].state = S.COMPLETED
    again = Graph(one.options, one.steps)
    given = again.pick(NOW, batches=500, begin=0).batches
    assert sum(len(batch.steps) for batch in given) == (8 * 157 if wide else 200)


def asking(*more: StepSpec, **job: float) -> Graph:
    """A graph whose first step waits for an approval."""
    one = graph(approval("ask me", **job), step("then", "ask me"), *more, max_parallel=1)
    one.key = "g 1"
    one.pick(NOW, batches=9, begin=9)
    return one


def test_an_approval_waits_for_somebody_and_takes_no_slot() -> None:
    one = asking(step("a"))
    assert states(one) == {"ask me": "executing", "then": "suspended", "a": "available"}
    assert one.steps[2].batch is not None, "the only slot is free for it"
    assert (
        one.waiting(0)
        == one.steps[0].reason
        == "it is waiting for an approval: crawlctl graph approve 'g 1' 'ask me'"
    )
    assert one.waits(called=False) == f'step "ask me": {one.steps[0].reason}'
    assert ApproveStep(step="ask me", requested_by="ada", note="go", at=NOW).apply(one) == 1
    assert one.records[0] == {"approved": True, "by": "ada", "at": NOW.isoformat(), "note": "go"}
    ended = one.steps[0]
    assert (ended.state, ended.outcome, ended.reason) == (
        S.COMPLETED,
        "approved",
        "approved by ada: go",
    )
    assert ApproveStep(step="ask me", requested_by="bob").apply(one) == 0
    with pytest.raises(
        NotInThisState,
        match=r'step "ask me": it is completed \(approved by ada: go\); retry the step',
    ):
        ApproveStep(step="ask me", approved=False).apply(one)
    assert states(one)["then"] == "available"


def test_a_rejected_approval_is_discarded_and_asks_again_after_a_retry() -> None:
    one = asking()
    assert ApproveStep(step="ask me", approved=False, note="wrong day").apply(one) == 1
    assert (one.steps[0].outcome, one.steps[0].reason) == (
        "rejected",
        "rejected by somebody: wrong day",
    )
    assert states(one) == {"ask me": "discarded", "then": "cancelled"}
    assert one.retry(None, cascade=True) == 2
    one.pick(NOW, batches=9, begin=9)
    assert (one.steps[0].state, one.steps[0].attempt) == (S.EXECUTING, 2)
    assert ApproveStep(step="ask me").apply(one) == 1
    assert run(one) == ["then"]


def test_an_approval_that_nobody_decides_times_out() -> None:
    one = graph(approval("ask me", timeout_s=60), step("then", "ask me"))
    assert one.pick(NOW, batches=9, begin=9).again_at == NOW + timedelta(seconds=60)
    assert "an approval until 2026-03-01 12:01:00 UTC" in str(one.waiting(0))
    again = one.pick(NOW + timedelta(seconds=59), batches=9, begin=9).again_at
    assert (again, one.steps[0].state) == (NOW + timedelta(seconds=60), S.EXECUTING)
    assert one.pick(NOW + timedelta(seconds=60), batches=9, begin=9).again_at is None
    assert states(one) == {"ask me": "discarded", "then": "cancelled"}
    assert (one.steps[0].outcome, one.steps[0].reason) == (
        "timed_out",
        "no decision was made within 60 s",
    )
    with pytest.raises(
        NotInThisState,
        match=r"it is discarded \(no decision was made within 60 s\); retry the step",
    ):
        ApproveStep(step="ask me").apply(one)


def test_a_cancelled_approval_has_ended_at_once() -> None:
    one = asking()
    assert one.cancel(None, "enough") == 2
    assert (one.state, one.steps[0].ending) == (GraphState.CANCELLED, False)


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        (
            "nobody",
            InvalidRequest,
            'step "nobody": there is no such step in this graph; list its steps',
        ),
        (
            "a",
            InvalidRequest,
            "step: 'a' is not allowed; its kind is function; name a step of kind approval",
        ),
        (
            "later",
            NotInThisState,
            r'it is suspended \(it is waiting for "a" \(available\)\); decide when it is waiting',
        ),
    ],
)
def test_what_takes_no_decision(path: str, error: type[Exception], text: str) -> None:
    one = graph(step("a"), approval("later", "a"))
    with pytest.raises(error, match=text):
        ApproveStep(step=path).apply(one)
