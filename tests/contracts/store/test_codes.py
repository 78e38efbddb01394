"""The codes of tasks and runs, and the filter by code."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.runs.codes import CODES_MAX
from tests.contracts.store.harness import Harness, seen

OLD = Code("sha256:" + "01" * 32, "6")
NEW = Code("sha256:" + "01" * 31 + "02", "7", "abcdef0", "a note")


def tell(harness: Harness, fence: Fence, *codes: Code | None) -> None:
    """Poll the first tasks, which execute these codes."""
    tasks = harness.store.polls.found_state(fence).tasks
    observed = [
        replace(seen(task, Phase.EXECUTING, harness.clock.now, uid=task.uid), code=code)
        for task, code in zip(tasks, codes, strict=False)
    ]
    harness.poll(fence, observed)


def test_codes_are_recorded_once_for_each_task_and_run(harness: Harness) -> None:
    fence = harness.executing(tasks=3)
    assert harness.row(fence).codes == ()
    waiting = Code(version="7")
    tell(harness, fence, waiting, OLD, NEW)
    assert [task.code for task in harness.store.tasks.list_tasks(fence.run_id)] == [
        waiting,
        OLD,
        NEW,
    ]
    assert list(harness.row(fence).codes) == [OLD, NEW]
    tell(harness, fence, NEW, None, waiting)
    tasks = harness.store.tasks.list_tasks(fence.run_id)
    assert [task.code for task in tasks] == [NEW, OLD, NEW], "a known digest is never lost"
    assert list(harness.row(fence).codes) == [OLD, NEW]
    by_folder = {"task-0": NEW, "task-1": OLD, "task-2": NEW}
    assert harness.store.tasks.codes(fence.run_id) == by_folder
    other = harness.executing("without codes")
    assert harness.store.tasks.codes(other.run_id) == {}
    evidence = harness.store.runs.transitions(fence.run_id)[-1].evidence
    assert "code" not in evidence


def test_runs_are_found_by_the_beginning_of_a_digest(harness: Harness) -> None:
    first, second, third = (harness.executing(name) for name in ("a", "b", "c"))
    harness.executing("d")
    tell(harness, first, OLD)
    tell(harness, second, NEW)
    tell(harness, third, OLD)
    runs = harness.store.runs

    def found(prefix: str, **more: int) -> list[int]:
        return [row.run_id for row in runs.list_runs(code=prefix, **more)]

    digits = str(OLD.digest).removeprefix("sha256:")
    assert found(digits) == found(str(OLD.digest)) == [third.run_id, first.run_id]
    assert found(digits, before_run_id=third.run_id) == [first.run_id]
    assert found(digits, limit=1) == [third.run_id]
    assert found("ffffff") == found(digits[:-1] + "3") == []
    assert runs.count_found(10, code=digits) == 2
    rows, _ = runs.search_runs(None, sort="crawler", code=digits)
    assert {row.run_id for row in rows} == {first.run_id, third.run_id}
    assert rows[0].codes == [OLD]
    with pytest.raises(InvalidRequest, match="the beginning of several digests, such as sha256:01"):
        found(digits[:-1])


def test_the_codes_of_one_run_are_bounded(harness: Harness) -> None:
    fence = harness.executing()
    for n in range(CODES_MAX + 2):
        harness.clock.now += timedelta(seconds=1)
        tell(harness, fence, Code(f"sha256:{n:064x}"))
    assert len(harness.row(fence).codes) == CODES_MAX


def test_the_event_about_the_end_names_the_codes(harness: Harness) -> None:
    fence = harness.executing()
    tell(harness, fence, NEW)
    harness.finish(fence)
    ended = harness.store.events.last_event(fence.run_id, EVENT_RUN_ENDED)
    assert ended is not None
    assert ended.body["codes"] == [
        {"digest": NEW.digest, "version": "7", "commit": "abcdef0", "note": "a note"}
    ]


def test_the_code_of_a_request_is_recorded_before_a_task_executes(harness: Harness) -> None:
    old = {"version": OLD.version, "code": OLD.digest}
    fence = harness.run("a", **old)
    assert [code.digest for code in harness.row(fence).codes] == [OLD.digest]
    request = harness.store.runs.request_of(fence.run_id)
    assert (request.version, request.code) == (OLD.version, OLD.digest)
