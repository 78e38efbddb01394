"""The objects of one run make lists longer, but hide no other run: every list is read in pages that
fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import cluster, labels
from crawler_lifecycle.clusters.kubernetes.client.errors import TooLarge
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.clusters.kubernetes.jobs import finalizers
from crawler_lifecycle.clusters.kubernetes.observer.reflector import Pace, Reflector
from crawler_lifecycle.domain.task import Phase
from tests.clusters.kubernetes.polls.harness import RUN, Harness
from tests.clusters.local.local_fixture import wait_until
from tests.support.run_refs import run_ref

#: The bytes of a response; a heavy Job, or its pod, has a third of them.
ANSWER = 90_000
HEAVY = 8


@pytest.fixture
def heavy(harness: Harness) -> Harness:
    """A run with one small task, and another run that fits into no response."""
    harness.deploy(1)
    harness.deploy(HEAVY, run_id=RUN + 1)
    for index in range(HEAVY):
        name = harness.name(index, RUN + 1)
        harness.server.change_job(
            name, lambda job: job["spec"]["template"]["spec"].update(x="x" * (ANSWER // 3))
        )
        harness.server.change_pod(name, lambda pod: pod["spec"].update(x="x" * (ANSWER // 3)))
    harness.api._wire.answer_max = ANSWER
    harness.forget_calls()
    return harness


def _observed(harness: Harness) -> int:
    told, over = list[Any](), threading.Event()
    complete = lambda _, kept: told.append(kept)  # noqa: E731
    reflector = Reflector(
        harness.api, Job, harness.api.jobs_path(), labels.ours(), complete, complete, Pace()
    )
    thread = threading.Thread(target=reflector.run, args=(over,))
    thread.start()
    try:
        wait_until(lambda: told)
    finally:
        over.set()
        wait_until(lambda: (reflector.leave(), thread.is_alive())[1] is False)
    return len(told[0])


def _released(harness: Harness) -> int:
    for index in range(HEAVY):
        harness.server.pod_ends(harness.name(index, RUN + 1), 0)
    return len(harness.finalizers.kept()) + 1


#: Who reads lists of everything, and how many tasks they find.
READERS: dict[str, Callable[[Harness], int]] = {
    "audit": lambda harness: len(harness.cluster.inventory()),
    "release": _released,
    "crawlctl cluster release": lambda harness: len(finalizers.list_held(harness.api)),
    "observer": _observed,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_whoever_lists_everything_finds_everything(
    heavy: Harness, reader: Callable[[Harness], int]
) -> None:
    assert reader(heavy) == 1 + HEAVY


def test_a_poll_of_the_heavy_run_itself(heavy: Harness) -> None:
    heavy.uids.clear()  # those of the other run
    poll = heavy.cluster.poll(run_ref(RUN + 1), [heavy.ref(index) for index in range(HEAVY)])
    assert [seen.phase for seen in poll.observations] == [Phase.EXECUTING] * HEAVY


def _pages(harness: Harness, size: int = 500) -> list[int]:
    """Return the page sizes that one list requested."""
    harness.forget_calls()
    found = harness.api.listing(harness.api.jobs_path(), Job, labels=labels.ours(), limit=size)
    assert len({job.metadata.name for job in found.items}) == len(found.items)
    return [int(request.query["limit"]) for request in list(harness.server.requests)]


def test_what_fits_is_remembered_and_grows_again(heavy: Harness) -> None:
    assert _pages(heavy, 8) == [8, 4, 2, 2, 2, 2, 2]
    assert _pages(heavy, 8) == [2, 2, 2, 2, 2]  # the next list is as cheap as before
    for index in range(HEAVY):
        heavy.server.change_job(
            heavy.name(index, RUN + 1), lambda job: job["spec"]["template"]["spec"].pop("x")
        )
    assert _pages(heavy, 8) == [2, 4, 8]
    assert _pages(heavy, 8) == [8, 8]


def test_an_object_that_no_answer_takes_is_an_error(heavy: Harness) -> None:
    heavy.api._wire.answer_max = ANSWER // 4
    with pytest.raises(
        TooLarge, match=f"list jobs in namespace crawls: it has more than {ANSWER // 4} bytes"
    ):
        _pages(heavy)
    assert len(heavy.poll(heavy.ref()).observations) == 1  # other runs are still polled


# --- many that are missing ------------------------------------------------------------------------


def test_many_missing_names_are_asked_for_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, 10,000 of them would take longer than a poll.

    Each still needs its own 404.
    """
    harness.uids = {index: f"gone-{index}" for index in range(cluster.THREADS)}
    together, get = threading.Barrier(cluster.THREADS, timeout=150), harness.api.get

    def at_once(path: str, **query: object) -> bytes:
        if "/jobs/crawl-" in path:
            together.wait()
        return get(path, **query)

    monkeypatch.setattr(harness.api, "get", at_once)
    refs = [harness.ref(index, missed_s=31) for index in harness.uids]
    assert [seen.phase for seen in harness.poll(*refs).observations] == [Phase.GONE] * len(refs)
    assert harness.calls("GET", "/jobs/crawl-") == len(refs)


def test_the_pods_of_many_missing_jobs_are_one_list(harness: Harness) -> None:
    harness.deploy(2)
    harness.server.change_pod(
        harness.name(), lambda pod: pod["metadata"]["labels"].pop(labels.MANAGED_BY)
    )
    harness.server.delete_behind(harness.name(), pods=False)  # its pod executes
    harness.uids |= {index: f"gone-{index}" for index in range(2, 400)}
    harness.forget_calls()
    phases = [
        seen.phase
        for seen in harness.poll(
            *(harness.ref(index, missed_s=31) for index in harness.uids)
        ).observations
    ]
    assert phases == [Phase.EXECUTING] * 2 + [Phase.GONE] * 398
    assert harness.calls("GET", r"/pods\?") == 2
