"""A restored database assigns a number again: what has the uid of another run is never taken for
ours.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Phase
from tests.contracts.cluster.cluster_harness import LONG, RUN, Harness
from tests.support.run_refs import run_ref

OURS = run_ref(RUN)
#: The run that has the number now. Its tasks have the same numbers, because their rows were counted
#: again as well.
LATER = RunRef(RUN, "f" * 32)


def test_a_deployment_adopts_nothing(harness: Harness) -> None:
    """If the uid is part of its name, it is created next to the other; elsewhere it is deferred
    with a reason.
    """
    [before] = harness.deploy()
    harness.until(Phase.EXECUTING)
    [answer] = harness.cluster.deploy(
        replace(harness.deployment(), run=LATER), harness.crawler(LONG)
    )
    if harness.uid_in_names:
        assert answer.state == "created"
        assert None not in {answer.uid, before.uid}
        assert answer.uid != before.uid
        assert sorted(task.run.uid for task in harness.cluster.inventory()) == sorted(
            [OURS.uid, LATER.uid]
        )
        harness.cluster.kill(LATER, harness.ref())
    else:
        assert (answer.state, answer.uid) == ("deferred", None)
        assert OURS.uid in (answer.reason or "")
        assert LATER.uid in (answer.reason or "")
        assert "restored" in (answer.reason or "")
    assert harness.poll().phase is Phase.EXECUTING


def test_a_task_whose_row_came_again_goes_on_under_another_number(harness: Harness) -> None:
    """The restored database lost the row of the next try, and created another one."""
    [before] = harness.deploy()
    harness.until(Phase.EXECUTING)
    given = harness.deployment()
    again = replace(given, tasks=[replace(given.tasks[0], task_id=4711)])
    [answer] = harness.cluster.deploy(again, harness.crawler(LONG))
    assert (answer.state, answer.uid) == ("existing", before.uid), answer
    [seen] = harness.cluster.poll(
        OURS, [replace(harness.ref(), task_id=4711, uid=answer.uid)]
    ).observations
    assert (seen.phase, seen.uid) == (Phase.EXECUTING, before.uid)


def test_a_poll_takes_nothing_of_it_for_its_own(harness: Harness) -> None:
    harness.deploy()
    harness.until_counted()
    [seen] = harness.cluster.poll(LATER, [harness.ref()]).observations
    assert (seen.phase, seen.uid, seen.name, seen.end) == (Phase.ABSENT, None, None, None)
    assert harness.uid_in_names or OURS.uid in (seen.reason or "")
    assert list(harness.cluster.details(LATER, [harness.ref()])) == []
    assert [
        source
        for source in harness.files.files(LATER, [harness.ref()])
        if source.folder is not None
    ] == []


def test_an_end_of_it_is_not_the_end_of_ours(harness: Harness) -> None:
    harness.deploy(seconds=0.2)
    harness.until(Phase.ENDED)
    [seen] = harness.cluster.poll(LATER, [harness.ref()]).observations
    assert (seen.phase, seen.end) == (Phase.ABSENT, None)


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_ending_ours_leaves_it_alone(harness: Harness, gesture: str) -> None:
    harness.deploy()
    harness.until_counted()
    getattr(harness.cluster, gesture)(LATER, harness.ref())
    if harness.keeper is not None:
        harness.keeper.release(LATER, [harness.ref()])
    assert harness.poll().phase is Phase.EXECUTING
    if harness.counts_signals:
        assert harness.signals() == 0


def test_an_inventory_says_whose_each_task_is(harness: Harness) -> None:
    harness.deploy()
    harness.until(Phase.EXECUTING)
    [task] = harness.cluster.inventory()
    assert task.run == OURS
