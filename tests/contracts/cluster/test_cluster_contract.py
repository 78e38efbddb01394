"""What every cluster guarantees to the lifecycle."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Phase, TaskStatus, read_end
from tests.contracts.cluster.cluster_harness import LONG, RUN, STATISTICS, Harness
from tests.support.run_refs import run_ref


def test_a_task_runs_to_its_end(harness: Harness) -> None:
    [answer] = harness.deploy()
    assert (answer.state, answer.index) == ("created", 0)
    assert answer.name == (
        f"crawl-{run_ref(RUN)}-0-1" if harness.uid_in_names else f"crawl-{RUN}-0-1"
    )
    running = harness.until(Phase.EXECUTING)
    assert running.uid == answer.uid
    assert running.started_at == running.changed_at is not None
    assert running.node
    harness.finish()
    seen = harness.until(Phase.ENDED)
    assert seen.end is not None
    assert (seen.end.exit_code, seen.end.reason, seen.end.finish_reason) == (
        0,
        "Completed",
        "finished",
    )
    assert seen.started_at is not None
    assert seen.end.finished_at is not None
    assert seen.started_at <= seen.end.finished_at == seen.changed_at <= seen.observed_at
    assert read_end(seen.end).status is TaskStatus.SUCCEEDED


def test_a_task_names_its_code_when_it_executes_and_never_loses_it(harness: Harness) -> None:
    """Whoever polls, and even if the project folder changes after the start."""
    crawler = replace(harness.crawler(LONG), version="2026-11-28", **harness.with_project())
    harness.cluster.deploy(harness.deployment(tasks=2), crawler)
    code = harness.until(Phase.EXECUTING).code
    if not harness.names_code:
        assert code is None
        return
    assert code is not None
    assert (code.version, code.note) == ("2026-11-28", None)
    assert re.fullmatch("sha256:[0-9a-f]{64}", code.digest or "")
    waiting = harness.until(Phase.WAITING, 1).code
    assert waiting is None or waiting.digest is None
    harness.change_project()
    harness.finish()
    ended = harness.until(Phase.ENDED).code
    assert ended in (code, replace(code, digest=None)), "the store keeps a digest that is known"


def test_a_task_names_the_reason_for_which_its_code_is_missing(harness: Harness) -> None:
    if not (harness.names_code and harness.logs):
        return
    harness.deploy_without_code()
    seen = harness.until_code(waits=True)
    assert re.search("the gateway answers 503|Connection refused", seen.code_wait or "")
    assert seen.started_at is not None
    harness.give_code()
    assert harness.until_code(waits=False).phase is Phase.EXECUTING


def test_a_poll_has_one_observation_for_each_task_asked_for(harness: Harness) -> None:
    harness.deploy(tasks=2)
    refs = [harness.ref(index) for index in (3, 0, 2, 1)]
    seen = harness.cluster.poll(run_ref(RUN), refs).observations
    assert [observation.index for observation in seen] == [3, 0, 2, 1]
    assert [observation.phase for observation in seen][::2] == [Phase.ABSENT, Phase.ABSENT]


def test_what_was_never_deployed_is_absent(harness: Harness) -> None:
    seen = harness.poll()
    assert (seen.phase, seen.uid, seen.end) == (Phase.ABSENT, None, None)


def test_what_the_database_knows_as_deployed_and_is_not_there_is_gone(harness: Harness) -> None:
    known = harness.missed("11111111-1111-1111-1111-111111111111")
    assert harness.cluster.poll(run_ref(RUN), [known]).observations[0].phase is Phase.GONE


def test_what_was_stopped_and_is_not_there_is_gone_at_once(harness: Harness) -> None:
    stopped = replace(harness.ref(), uid="11111111-1111-1111-1111-111111111111", stopping=True)
    assert harness.cluster.poll(run_ref(RUN), [stopped]).observations[0].phase is Phase.GONE


def test_deploying_again_finds_the_same_task(harness: Harness) -> None:
    [first] = harness.deploy()
    [again] = harness.deploy()
    assert (again.state, again.uid, again.name) == ("existing", first.uid, first.name)


def test_an_attempt_is_a_task_of_its_own(harness: Harness) -> None:
    [first] = harness.deploy(attempt=1)
    [second] = harness.deploy(attempt=2)
    assert second.state == "created"
    assert second.uid != first.uid


def test_a_saturated_cluster_says_why_a_task_waits(harness: Harness) -> None:
    harness.deploy(tasks=2)
    harness.until(Phase.EXECUTING)
    harness.until_saturated(1)
    seen = harness.poll(1)
    assert re.search(harness.saturated, seen.reason or "")
    assert seen.changed_at is not None
    assert seen.started_at is None


def test_a_waiting_task_starts_when_there_is_room(harness: Harness) -> None:
    harness.deploy(tasks=2, seconds=0.5)
    harness.until(Phase.ENDED, index=1)


def test_an_expired_deployment_creates_nothing(harness: Harness) -> None:
    with pytest.raises(DeploymentExpired):
        harness.cluster.deploy(harness.deployment(expires_in=-1), harness.crawler(1))
    assert harness.poll().phase is Phase.ABSENT
    assert harness.deploy()[0].state == "created"


def test_an_expired_retry_still_finds_what_exists(harness: Harness) -> None:
    [first] = harness.deploy()
    [again] = harness.cluster.deploy(harness.deployment(expires_in=-1), harness.crawler(1))
    assert (again.state, again.uid) == ("existing", first.uid)


def test_wrong_arguments_are_refused(harness: Harness) -> None:
    deployment = harness.deployment(nonsense="1")
    [answer] = harness.cluster.deploy(deployment, harness.crawler(1))
    assert answer.state == "refused"
    assert "nonsense" in (answer.reason or "")
    assert harness.poll().phase is Phase.ABSENT


def test_what_grew_too_large_since_it_was_accepted_is_refused_with_its_size(
    harness: Harness,
) -> None:
    settings = {"DEPTH": "x" * 66_000}
    [answer] = harness.cluster.deploy(
        replace(harness.deployment(), settings=settings), harness.crawler(1)
    )
    assert answer.state == "refused"
    assert "settings: 66" in (answer.reason or "")
    assert harness.poll().phase is Phase.ABSENT


def test_a_stop_ends_the_task_with_one_signal(harness: Harness) -> None:
    harness.deploy()
    harness.until_counted()
    for _ in range(3):
        harness.cluster.stop(run_ref(RUN), harness.ref())
    seen = harness.until(Phase.ENDED)
    assert seen.end is not None
    assert (seen.end.exit_code, seen.end.signal, seen.end.finish_reason) == (
        harness.stopped,
        None,
        "shutdown",
    )
    assert not harness.counts_signals or harness.signals() == 1


def test_a_waiting_task_is_stopped_without_ever_executing(harness: Harness) -> None:
    harness.deploy(tasks=2)
    harness.until(Phase.WAITING, index=1)
    harness.cluster.stop(run_ref(RUN), harness.ref(1))
    harness.never_ran(1)
    assert harness.signals(1) == 0


def test_a_kill_leaves_the_evidence_of_a_kill(harness: Harness) -> None:
    harness.deploy()
    harness.until_counted()
    harness.cluster.kill(run_ref(RUN), harness.ref())
    seen = harness.until(Phase.ENDED)
    assert seen.end is not None
    assert (seen.end.exit_code, seen.end.signal, seen.end.finish_reason) == harness.killed


def test_a_waiting_task_that_is_killed_never_executes(harness: Harness) -> None:
    harness.deploy(tasks=2)
    harness.until(Phase.WAITING, index=1)
    harness.cluster.kill(run_ref(RUN), harness.ref(1))
    harness.never_ran(1)


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_ending_what_is_gone_is_no_error_and_changes_nothing(
    harness: Harness, gesture: str
) -> None:
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref())
    assert harness.poll().phase is Phase.ABSENT
    harness.deploy(seconds=0.3)
    before = harness.until(Phase.ENDED)
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref())
    after = harness.poll()
    assert replace(after, observed_at=before.observed_at) == before


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_another_object_under_the_name_is_left_alone(harness: Harness, gesture: str) -> None:
    """A call for a task that is gone arrives late, when another object has its name."""
    [created] = harness.deploy()
    harness.until_counted()
    former = replace(harness.ref(), uid="11111111-1111-1111-1111-111111111111")
    getattr(harness.cluster, gesture)(run_ref(RUN), former)
    assert harness.poll().phase is Phase.EXECUTING
    getattr(harness.cluster, gesture)(run_ref(RUN), replace(harness.ref(), uid=created.uid))
    seen = harness.until(Phase.ENDED)
    assert seen.end is not None
    assert seen.end.finish_reason == ("shutdown" if gesture == "stop" else harness.killed[2])
    if harness.counts_signals:
        assert harness.signals() == (gesture == "stop"), "the one stop that was meant for it"


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_the_next_attempt_is_another_object(harness: Harness, gesture: str) -> None:
    harness.deploy(seconds=0.2)
    harness.until(Phase.ENDED)
    harness.deploy(attempt=2)
    harness.until(Phase.EXECUTING, attempt=2)
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref(attempt=1))
    assert harness.poll(attempt=2).phase is Phase.EXECUTING


def test_counters_and_log_can_be_read(harness: Harness) -> None:
    harness.deploy()
    harness.until_counted()
    if not harness.logs:
        assert list(harness.cluster.details(run_ref(RUN), [harness.ref(), harness.ref(3)])) == []
        return
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref(), harness.ref(3)])
    assert details.task_id == harness.ref().task_id
    assert details.counters.pages
    assert "a line of log" in (details.log_tail or "")


def test_the_statistics_of_a_crawler_are_told_at_its_end(harness: Harness) -> None:
    harness.deploy()
    harness.until_counted()
    if not harness.logs:
        return
    assert [one.statistics for one in harness.cluster.details(run_ref(RUN), [harness.ref()])] == [
        None
    ]
    harness.finish()
    harness.until(Phase.ENDED)
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert details.statistics == STATISTICS
    assert "a line of log" in (details.log_tail or "")
    assert "crawl_stats" not in (details.log_tail or ""), "what is kept of a log is for people"


def test_files_names_the_folders_that_exist(harness: Harness) -> None:
    harness.deploy()
    sources = harness.files.files(run_ref(RUN), [harness.ref(), harness.ref(3)])
    assert [source.prefix for source in sources] == ["task-0"]
    assert sources[0].folder is not None
    assert sources[0].folder.is_dir()


def test_an_outage_is_an_error_and_no_observation(harness: Harness) -> None:
    harness.deploy()
    harness.break_it()
    with pytest.raises(ClusterUnavailable):
        harness.poll()


def test_what_was_put_elsewhere_is_neither_missing_nor_gone_nor_stopped(harness: Harness) -> None:
    """If the task was created elsewhere, its absence proves nothing, not even after our own stop."""
    elsewhere = replace(
        harness.missed("a-uid-of-ours"), place="elsewhere/another/place", stopping=True
    )
    for task in (elsewhere, replace(elsewhere, uid=None)):
        with pytest.raises(ClusterUnavailable, match="elsewhere"):
            harness.cluster.poll(run_ref(RUN), [task])
        with pytest.raises(ClusterUnavailable, match="elsewhere"):
            harness.cluster.stop(run_ref(RUN), task)
        with pytest.raises(ClusterUnavailable, match="elsewhere"):
            harness.cluster.kill(run_ref(RUN), task)
    with pytest.raises(ClusterUnavailable, match="elsewhere"):
        harness.cluster.place(["elsewhere/another/place"])


def test_what_was_put_here_is_looked_for_here(harness: Harness) -> None:
    place = harness.cluster.place()
    assert harness.cluster.place([place] if place else []) == place
    harness.deploy()
    running = harness.until(Phase.EXECUTING)
    ours = replace(harness.ref(), uid=running.uid, place=place)
    assert harness.cluster.poll(run_ref(RUN), [ours]).observations[0].phase is Phase.EXECUTING
    gone = replace(harness.missed("a-uid-of-ours"), place=place, index=5)
    assert harness.cluster.poll(run_ref(RUN), [gone]).observations[0].phase is Phase.GONE


def test_nothing_is_created_where_the_caller_does_not_poll(harness: Harness) -> None:
    asked = replace(harness.deployment(), place="elsewhere/another/place")
    with pytest.raises(ClusterUnavailable, match="elsewhere"):
        harness.cluster.deploy(asked, harness.crawler(1))
    assert harness.poll().phase is Phase.ABSENT
    [answer] = harness.cluster.deploy(
        replace(asked, place=harness.cluster.place()), harness.crawler(1)
    )
    assert answer.state == "created"


def test_the_inventory_holds_what_waits_and_executes_and_nothing_else(harness: Harness) -> None:
    assert harness.cluster.inventory() == []
    answers = harness.deploy(tasks=2)
    running = harness.until(Phase.EXECUTING)
    first, second = harness.cluster.inventory()
    assert [first.key, second.key] == [(RUN, 0, 1), (RUN, 1, 1)]
    assert [first.executing, second.executing] == [True, False]
    assert [first.uid, second.uid] == [answer.uid for answer in answers]
    assert (first.started_at, first.node) == (running.started_at, running.node)
    harness.cluster.kill(run_ref(RUN), harness.ref(0))
    harness.cluster.kill(run_ref(RUN), harness.ref(1))
    harness.until_nothing_lives()


def test_the_inventory_comes_in_pages_of_all_runs_or_of_one(harness: Harness) -> None:
    harness.deploy(tasks=3)
    harness.until(Phase.EXECUTING)
    keys = [(RUN, index, 1) for index in range(3)]
    assert [task.key for task in harness.cluster.inventory(limit=2)] == keys[:2]
    assert [task.key for task in harness.cluster.inventory(after=keys[1], limit=2)] == keys[2:]
    assert [task.key for task in harness.cluster.inventory(run_id=RUN)] == keys
    assert harness.cluster.inventory(run_id=RUN + 1) == []
    assert harness.cluster.inventory(after=(RUN + 1, 0, 0)) == []


def test_a_cluster_that_cannot_be_read_has_no_inventory(harness: Harness) -> None:
    harness.deploy()
    harness.until(Phase.EXECUTING)
    harness.break_it()
    with pytest.raises(ClusterUnavailable):
        harness.cluster.inventory()


def test_the_highest_number_of_a_run_is_known_also_after_its_end(harness: Harness) -> None:
    assert harness.numbers.highest_run() == 0
    assert harness.numbers.highest_run(RUN + 1) == RUN + 1
    harness.deploy()
    assert harness.numbers.highest_run() == RUN
    harness.until(Phase.EXECUTING)
    harness.finish()
    harness.until(Phase.ENDED)
    assert harness.numbers.highest_run(RUN - 1) == RUN


def test_what_it_knows_of_a_task_makes_its_row_again(harness: Harness) -> None:
    """Also after the task has ended; nothing is returned about another run with the number."""
    record = {
        "request_id": "r1",
        "request": {"tags": ["nightly"], "limits": {"stop_grace_s": 60.0}},
    }
    deployed = harness.deploy(tasks=2, record=record)
    harness.until(Phase.EXECUTING)
    harness.finish()
    harness.until(Phase.ENDED)
    run = run_ref(RUN)
    found = harness.cluster.task_records(run)
    assert [(one.index, one.attempt, one.task_id, one.uid, one.name) for one in found] == [
        (index, 1, 100 + index, deployed[index].uid, deployed[index].name) for index in (0, 1)
    ]
    assert {one.crawler for one in found} == {"demo"}
    assert all(one.record == record for one in found)
    assert harness.cluster.task_records(RunRef(run.run_id, "f" * 32)) == []


def test_a_poll_of_some_of_the_tasks_says_of_them_what_a_poll_of_all_says(harness: Harness) -> None:
    harness.deploy(tasks=2)
    harness.until(Phase.EXECUTING)
    harness.until_saturated(1)
    vanished = replace(harness.ref(2), uid="11111111-1111-1111-1111-111111111111")
    refs = [harness.ref(0), harness.ref(1), vanished, harness.ref(3)]
    together = harness.cluster.poll(run_ref(RUN), refs).observations
    alone = [harness.cluster.poll(run_ref(RUN), [ref]).observations[0] for ref in refs]
    assert [(one.index, one.phase, one.uid) for one in alone] == [
        (one.index, one.phase, one.uid) for one in together
    ]
