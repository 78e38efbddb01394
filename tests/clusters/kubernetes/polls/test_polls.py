"""Polls of a faulty Kubernetes cluster: every fault is an error, and a task is gone only with
proof.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.clusters.kubernetes.polls import details
from crawler_lifecycle.clusters.kubernetes.polls.termination_message import read_summary
from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Phase
from tests.clusters.kubernetes.polls.harness import RUN, Harness
from tests.support.kube_api import (
    Answer,
    Cut,
    Fault,
    Garbage,
    Reset,
    Silence,
    Stale,
    Truncated,
    throttled,
)
from tests.support.kube_api.clients import impatient
from tests.support.kube_api.controllers import key_of
from tests.support.kube_api.store import EVENTS, JOBS, PODS
from tests.support.run_refs import run_ref

#: One of each kind: ``client/test_faults.py`` lists the faults, and checks that each is an error of
#: a list.
FAULTS: dict[str, Fault] = {
    "401": Answer(401, "Unauthorized"),
    "403": Answer(403, 'pods is forbidden: User "u" cannot list resource "pods" in API group ""'),
    "404": Answer(404, "the server could not find the requested resource"),
    "410": Answer(410, "too old"),
    "silence": Silence(5),
    "cut": Cut(300),
    "an empty object": Garbage(b"{}"),
}


@pytest.mark.parametrize("resource", ["jobs", "pods"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_fault_is_an_observation(tmp_path: Path, resource: str, fault: Fault) -> None:
    harness = Harness(tmp_path)
    try:
        harness.deploy(2)
        harness.server.faults.add("GET", rf"/{resource}\?", fault, times=None)
        for ask in (harness.poll, harness.cluster.inventory):
            limit = impatient(harness.api) if isinstance(fault, Silence) else nullcontext()
            with limit, pytest.raises(ClusterUnavailable):
                ask()
        harness.server.faults.clear()
        assert [seen.phase for seen in harness.poll().observations] == [Phase.EXECUTING] * 2
    finally:
        harness.close()


@pytest.mark.parametrize(
    "fault", [Answer(500), Answer(403), throttled(), Reset(), Garbage(b"[]")], ids=repr
)
def test_a_name_that_cannot_be_asked_for_is_no_proof(harness: Harness, fault: Fault) -> None:
    harness.deploy()
    harness.server.delete_behind(harness.name())
    harness.server.faults.add("GET", "/jobs/crawl", fault)
    with pytest.raises(ClusterUnavailable):
        harness.see(missed_s=3600)


@pytest.mark.parametrize(
    "cut",
    [Cut, partial(Cut, chunked=True), partial(Cut, reset=True), Truncated],
    ids=["end", "chunk", "RST", "half JSON"],
)
def test_an_answer_that_is_cut_off_anywhere_is_not_known(
    harness: Harness, cut: Callable[[int], Fault]
) -> None:
    """This holds for both lists, and for the 404 that would prove that the task is gone."""
    harness.deploy(2)
    harness.server.delete_behind(harness.name())
    refs = [harness.ref(missed_s=3600), harness.ref(1)]
    dice = random.Random(8)
    for asked, least in ((r"/jobs\?", 1000), (r"/pods\?", 1000), ("/jobs/crawl", 100)):
        for place in (1, *dice.sample(range(2, least), 5)):
            harness.server.faults.add("GET", asked, cut(place), times=None)
            with pytest.raises(ClusterUnavailable):
                harness.poll(*refs)
            harness.server.faults.clear()
    assert [seen.phase for seen in harness.poll(*refs).observations] == [
        Phase.GONE,
        Phase.EXECUTING,
    ]


def test_a_stale_list_is_found_out_and_is_no_proof(harness: Harness) -> None:
    harness.deploy()
    harness.server.faults.add("GET", r"/jobs\?", Stale(1000), times=None)
    with pytest.raises(ApiError, match="stale: crawl-7-0-1 exists, but is missing from the list"):
        harness.see(missed_s=3600)
    with pytest.raises(ApiError, match="stale"):
        harness.see(stopping=True)


# --- gone -----------------------------------------------------------------------------------------


def test_absence_is_proved_by_two_polls(harness: Harness) -> None:
    harness.stand_still()
    harness.deploy()
    harness.server.delete_behind(harness.name())
    poll = harness.poll()
    assert [seen.phase for seen in poll.observations] == [Phase.ABSENT]
    assert poll.again_s == pytest.approx(30.1)
    # A poll by a clock that is ahead counts as the first.
    ahead = harness.poll(harness.ref(missed_s=-600))
    assert (ahead.observations[0].phase, ahead.again_s) == (Phase.ABSENT, pytest.approx(30.1))
    later = harness.poll(harness.ref(missed_s=12))
    assert later.observations[0].phase is Phase.ABSENT
    assert later.again_s == pytest.approx(18.1)
    proof = harness.poll(harness.ref(missed_s=30))
    assert (proof.observations[0].phase, proof.again_s) == (Phase.GONE, None)


def test_what_is_left_of_a_job_is_no_absence(harness: Harness) -> None:
    """The Job is gone, but its pod is not: the task is executing, whoever deleted what."""
    harness.deploy()
    harness.server.delete_behind(harness.name(), pods=False)
    for seen in (harness.see(), harness.see(stopping=True), harness.see(missed_s=3600)):
        assert seen.phase is Phase.EXECUTING
    assert "Its Job is gone" in (harness.see().reason or "")


@pytest.mark.parametrize("name", [labels.RUN, labels.TASK])
def test_a_job_whose_label_was_taken_off_is_still_read(harness: Harness, name: str) -> None:
    harness.deploy()
    harness.server.change_job(harness.name(), lambda job: job["metadata"]["labels"].pop(name))
    assert harness.see().phase is Phase.EXECUTING
    assert harness.see(missed_s=3600).phase is Phase.EXECUTING


def _without_label(harness: Harness, name: str = labels.RUN) -> None:
    harness.server.change_pod(harness.name(), lambda pod: pod["metadata"]["labels"].pop(name))


WELL = '{"runner": "1", "finish_reason": "finished", "exit": 0}'


def test_a_pod_without_our_labels_is_not_gone_with_its_stopped_job(harness: Harness) -> None:
    harness.deploy()
    _without_label(harness)
    assert harness.see().phase is Phase.EXECUTING
    harness.cluster.stop(run_ref(RUN), harness.ref())
    harness.later = timedelta(seconds=40)
    assert harness.see(stopping=True).phase is Phase.EXECUTING
    assert [task.executing for task in harness.cluster.inventory()] == [True]


@pytest.mark.parametrize("name", [labels.RUN, labels.MANAGED_BY, labels.TASK])
def test_the_end_of_a_pod_without_our_labels_is_read(harness: Harness, name: str) -> None:
    harness.deploy()
    _without_label(harness, name)
    harness.server.pod_ends(harness.name(), 0, "Completed", WELL)
    for ref in (harness.ref(), harness.without_uid()):
        [seen] = harness.poll(ref).observations
        assert seen.end is not None
        assert (seen.end.exit_code, seen.end.finish_reason) == (0, "finished")


def test_a_drained_pod_without_our_labels_was_no_success(harness: Harness) -> None:
    harness.deploy()
    _without_label(harness)
    harness.server.pod_marked(harness.name(), "EvictionByEvictionAPI")
    harness.server.pod_ends(harness.name(), 0)
    end = harness.see().end
    assert end is not None
    assert end.disruption == "evicted"


def test_a_list_of_pods_that_lags_behind_ends_nothing(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0, "Completed", WELL)
    harness.server.faults.add("GET", r"/pods\?", Stale(1000))
    end = harness.see().end
    assert end is not None
    assert end.finish_reason == "finished"


def test_jobs_that_have_no_pod_yet_cost_no_further_list(harness: Harness) -> None:
    """A quota can hold hundreds of them for hours."""
    harness.server.controllers.refuses_pods = "exceeded quota: crawls"
    harness.deploy(3, started=False)
    harness.later = timedelta(minutes=10)
    harness.forget_calls()
    assert {seen.phase for seen in harness.poll().observations} == {Phase.WAITING}
    assert (harness.calls("GET", r"/jobs\?"), harness.calls("GET", r"/pods\?")) == (1, 1)


# --- a few tasks of a wide run --------------------------------------------------------------------


def _listed(harness: Harness) -> list[tuple[str, int]]:
    """Return what was listed since the calls were cleared: the selector, and the number of objects."""
    found = [
        str(one.query["labelSelector"])
        for one in harness.server.requests
        if "labelSelector" in one.query
    ]
    return [
        (one, len(harness.api.listing(harness.api.jobs_path(), Job, labels=one).items))
        for one in found
    ]


def test_a_poll_of_few_tasks_lists_only_what_is_theirs(harness: Harness) -> None:
    harness.deploy(5)
    harness.server.pod_ends(harness.name(3), 0, "Completed", WELL)
    harness.forget_calls()
    poll = harness.poll(harness.ref(1), harness.ref(3))
    assert [seen.phase for seen in poll.observations] == [Phase.EXECUTING, Phase.ENDED]
    calls = harness.calls("GET", r"/(jobs|pods)\?")
    few = f"{labels.of_run(RUN)},{labels.TASK} in (1,3)"
    assert (calls, _listed(harness)) == (2, [(few, 2), (few, 2)])


def test_an_absence_is_concluded_only_from_lists_of_the_whole_run(harness: Harness) -> None:
    harness.deploy(5)
    harness.server.delete_behind(harness.name(1))
    harness.forget_calls()
    first = harness.poll(harness.ref(1))
    assert first.observations[0].phase is Phase.ABSENT
    assert first.again_s is not None
    assert _listed(harness)[0][0] == f"{labels.of_run(RUN)},{labels.TASK} in (1)"
    harness.forget_calls()
    proof = harness.poll(harness.ref(1, missed_s=30))
    assert proof.observations[0].phase is Phase.GONE
    assert [selector for selector, _ in _listed(harness)][:2] == [labels.of_run(RUN)] * 2


def test_an_index_of_another_run_or_attempt_is_not_taken_for_the_task(harness: Harness) -> None:
    harness.deploy(2)
    harness.deploy(2, run_id=8)
    again = replace(harness.without_uid(1), attempt=2)
    assert [seen.phase for seen in harness.poll(harness.ref(1), again).observations] == [
        Phase.EXECUTING,
        Phase.ABSENT,
    ]


def test_what_was_never_deployed_is_absent_and_asked_for_by_nobody(harness: Harness) -> None:
    harness.deploy()
    harness.forget_calls()
    refs = [harness.without_uid(index) for index in range(1, 300)]
    poll = harness.poll(*refs)
    assert {seen.phase for seen in poll.observations} == {Phase.ABSENT}
    assert (harness.calls(), poll.again_s) == (2, None)


def test_a_job_recreated_by_hand_is_not_ours(harness: Harness) -> None:
    harness.deploy()
    again = harness.server.recreate_behind(harness.name())
    seen = harness.see()
    assert seen.uid == again["metadata"]["uid"] != harness.uids[0]
    assert harness.see(stopping=True).phase is Phase.GONE


def test_many_that_vanish_at_once(harness: Harness) -> None:
    """Their names are requested one by one, and their pods together."""
    harness.uids = {index: f"gone-{index}" for index in range(60)}
    poll = harness.poll(*(harness.ref(index, missed_s=31) for index in range(60)))
    assert {seen.phase for seen in poll.observations} == {Phase.GONE}
    assert harness.calls("GET", r"/jobs/") == 60
    assert harness.calls("GET", r"/pods\?") == 3


def test_a_pod_deleted_by_a_person(harness: Harness) -> None:
    harness.deploy()
    harness.server.controllers.delete_pod(harness.server.pod(harness.name()))
    harness.server.controllers.end_pod(harness.server.pod(harness.name()), 143)
    end = harness.see().end
    assert end is not None
    assert (end.disruption, end.message) == ("interrupted", "its pod was deleted by somebody else")


def test_a_pod_torn_away_with_its_finalizer_leaves_its_job(harness: Harness) -> None:
    harness.deploy()
    harness.server.delete_pod_behind(harness.name())
    seen = harness.see()
    assert (seen.phase, seen.end) == (Phase.WAITING, None)


def test_an_older_snapshot_of_the_cluster(harness: Harness) -> None:
    """Versions go back: what was created since is missing, and what had ended is executing again."""
    harness.deploy()
    before = harness.server.store.version
    harness.deploy_more(1)
    harness.server.pod_ends(harness.name(0), 0)
    assert [seen.phase for seen in harness.poll().observations] == [Phase.ENDED, Phase.EXECUTING]
    harness.server.store.restore(before)
    assert [seen.phase for seen in harness.poll().observations] == [Phase.EXECUTING, Phase.ABSENT]
    assert harness.see(1, missed_s=31).phase is Phase.GONE


def test_no_page_of_the_inventory_ends_inside_a_task(harness: Harness) -> None:
    """A deletion that orphans left a pod next to a new Job of the same name."""
    harness.deploy(3)
    old = harness.server.job(harness.name(1))
    harness.server.delete_behind(harness.name(1), pods=False)
    again = {
        name: value
        for name, value in old["metadata"].items()
        if name in ("name", "namespace", "labels")
    }
    harness.server.store.create(
        JOBS, (old["metadata"]["namespace"], harness.name(1)), {**old, "metadata": again}
    )
    whole = harness.cluster.inventory()
    assert [task.key[1] for task in whole] == [0, 1, 1, 2]
    for limit in range(1, 5):
        pages = [harness.cluster.inventory(limit=limit)]
        while pages[-1]:
            pages.append(harness.cluster.inventory(after=pages[-1][-1].key, limit=limit))
        assert [task for page in pages for task in page] == whole
        assert all(len(page) >= limit for page in pages[:-2]), (
            "who sees a shorter page takes it for the last"
        )
    assert harness.cluster.inventory(limit=0) == []


# --- namespace, rights, server --------------------------------------------------------------------


def test_a_namespace_that_is_gone_is_told(harness: Harness) -> None:
    harness.deploy()
    harness.server.delete_behind(harness.name())
    harness.server.store.remove(*_namespace(harness))
    seen = harness.see()
    assert seen.phase is Phase.ABSENT
    assert "The namespace crawls does not exist any more" in (seen.reason or "")


def test_a_namespace_that_is_being_deleted_is_told_with_the_fix(harness: Harness) -> None:
    harness.deploy()
    harness.server.store.update(
        *_namespace(harness), lambda n: n["status"].update(phase="Terminating")
    )
    harness.server.controllers.delete_pod(harness.server.pod(harness.name()))
    seen = harness.see()
    assert seen.phase is Phase.EXECUTING
    assert "is being deleted; our finalizer" in (seen.reason or "")
    assert "crawlctl cluster release" in (seen.reason or "")


def _namespace(harness: Harness) -> tuple[Any, tuple[str, str]]:
    from tests.support.kube_api.store import NAMESPACES

    return NAMESPACES, ("", harness.server.namespace)


@pytest.mark.parametrize("denied", [("list", "events"), ("get", "pods/log"), ("get", "namespaces")])
def test_rights_that_only_explain_are_not_needed(harness: Harness, denied: tuple[str, str]) -> None:
    harness.deploy()
    harness.server.controllers.refuses_pods = "exceeded quota: crawls"
    harness.deploy_more(1, started=False)
    harness.later = timedelta(seconds=20)
    harness.server.deny(*denied)
    harness.server.controllers.delete_pod(harness.server.pod(harness.name()))
    assert [seen.phase for seen in harness.poll().observations] == [Phase.EXECUTING, Phase.WAITING]


# --- what a poll costs, and what it adds ----------------------------------------------------------


def test_a_quiet_poll_is_two_lists_and_the_logs(harness: Harness) -> None:
    harness.deploy(3)
    harness.forget_calls()
    harness.poll()
    assert harness.calls("GET", r"/jobs\?") == harness.calls("GET", r"/pods\?") == 1
    assert harness.calls("GET", "/log") == 3
    assert harness.calls() == 5
    # A pod that came and ended between the lists must not be missing from its ended Job.
    assert [seen.path.rpartition("/")[2] for seen in harness.server.requests][:2] == [
        "jobs",
        "pods",
    ]


def test_logs_of_at_most_fifty_in_turn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "PODS_A_POLL", 2)
    harness.deploy(5)
    for index in range(5):
        harness.server.pod_prints(
            harness.name(index), b'{"crawl_progress": {"pages": 4, "items": 1}}\n'
        )
    counted: set[int] = set()
    for _ in range(3):
        seen = [one.index for one in harness.poll().observations if one.counters.pages == 4]
        assert len(seen) == 2
        counted |= set(seen)
    assert counted == set(range(5)), "three turns of two go round"


def test_refused_requests_are_in_the_log_and_in_the_summary(harness: Harness) -> None:
    harness.deploy(1)
    blocked = b'{"host": "shop.example", "status": 429}, {"status": 429}, 7'
    harness.server.pod_prints(harness.name(0), b'{"crawl_progress": {"blocked": [%b]}}\n' % blocked)
    assert harness.poll().observations[0].blocked == (BlockReport("shop.example", 429),)
    message = b'{"runner": "1", "exit": 1, "blocked": [%b], "message": "cut' % blocked
    assert read_summary(message.decode()).progress.blocked == (BlockReport("shop.example", 429),)


@pytest.mark.parametrize("fault", [Answer(500), Answer(400), Silence(30), Reset()], ids=repr)
def test_a_log_that_cannot_be_read_is_no_failing_poll(
    harness: Harness, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_one_is_left(calls: Sequence[Future[bytes | None]], _: float) -> object:
        wait(calls[1:])
        return wait(calls, 0)

    if isinstance(fault, Silence):  # the time runs out when only the silent node has not responded
        monkeypatch.setattr(details, "wait", until_one_is_left)
    harness.deploy(2)
    for index in range(2):
        harness.server.pod_prints(harness.name(index), b'{"crawl_progress": {"pages": 4}}\n')
    harness.server.faults.add(
        "GET",
        rf"/pods/{harness.server.pod(harness.name(0))['metadata']['name']}/log",
        fault,
        times=None,
    )
    seen = harness.poll().observations
    assert [one.phase for one in seen] == [Phase.EXECUTING] * 2
    assert [one.counters.pages for one in seen] == [None, 4]


@pytest.mark.parametrize(("tasks", "calls"), [(7, 1), (2, 2)], ids=["all together", "one by one"])
def test_why_no_pod_is_made_is_read_from_events(harness: Harness, tasks: int, calls: int) -> None:
    harness.server.controllers.refuses_pods = (
        'pods "x" is forbidden: exceeded quota: crawls, requested: pods=1'
    )
    harness.deploy(tasks, started=False)
    harness.later = timedelta(seconds=5)
    harness.forget_calls()
    seen = harness.poll().observations
    assert {"quota is used up: exceeded quota: crawls" in (one.reason or "") for one in seen} == {
        True
    }
    assert harness.calls("GET", "/events") == calls


def test_why_an_image_is_not_pulled_is_read_from_an_event_where_the_container_does_not_say(
    harness: Harness,
) -> None:
    """With older kubelets, the container only says that it waits for the next try."""
    harness.deploy(started=False)
    pod = harness.server.pod_waits(
        harness.name(), "ImagePullBackOff", 'Back-off pulling image "crawl.test/crawler:1"'
    )
    about = {
        "kind": "Pod",
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
        "namespace": "crawls",
    }
    harness.later = timedelta(seconds=20)
    assert "cannot be pulled: the node gives no reason; the node tries again" in (
        harness.see().reason or ""
    )
    words = 'Failed to pull image "crawl.test/crawler:1": no such tag'
    event = {
        "involvedObject": about,
        "type": "Warning",
        "reason": "Failed",
        "message": words,
        "metadata": {},
    }
    harness.server.store.create(EVENTS, ("crawls", "pull"), event)
    assert (
        harness.see().reason
        == "The image crawl.test/crawler:1 cannot be pulled: no such tag; the node tries again"
    )
    harness.server.deny("list", "events")
    assert "not all events that explain this were read" in (harness.see().reason or "")


def _refused(
    harness: Harness, many: int, reason: str, *, kind: str = "Job", first: str = "a"
) -> list[str | None]:
    """Return why five tasks wait, whose events come after those of other objects, or before those
    that begin with "z".
    """
    harness.deploy(5, started=False)
    for name in (f"{first}{number:04}" for number in range(many)):  # a server sorts lists by name
        about = {"kind": kind, "name": name, "uid": name, "namespace": "crawls"}
        event = {
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": "no",
            "metadata": {},
        }
        harness.server.store.create(EVENTS, ("crawls", name), event)
    harness.later = timedelta(seconds=120)
    harness.forget_calls()
    return [one.reason for one in harness.poll().observations]


@pytest.mark.parametrize(
    ("kind", "reason", "pages"),
    [
        ("Job", "FailedCreate", 2),
        ("Job", "BackoffLimitExceeded", 1),
        ("ReplicaSet", "FailedCreate", 1),
    ],
)
def test_events_behind_those_of_others_are_read_as_well(
    harness: Harness, kind: str, reason: str, pages: int
) -> None:
    """Time is needed only for those that may say why a Job has no pod."""
    harness.server.controllers.refuses_pods = (
        'pods "x" is forbidden: exceeded quota: crawls, requested: pods=1'
    )
    assert {
        "exceeded quota" in (why or "") for why in _refused(harness, 600, reason, kind=kind)
    } == {True}
    assert harness.calls("GET", "/events") == pages


def test_an_event_that_was_read_tells_why_although_others_were_not(harness: Harness) -> None:
    harness.server.controllers.refuses_pods = (
        'pods "x" is forbidden: exceeded quota: crawls, requested: pods=1'
    )
    harness.server.faults.add("GET", "/events.*continue=", Answer(500), times=None)
    assert {
        "exceeded quota" in (why or "") for why in _refused(harness, 600, "FailedCreate", first="z")
    } == {True}


@pytest.mark.parametrize("fault", [Answer(500), throttled(), Garbage(b"{}")], ids=repr)
def test_events_that_were_not_all_read_are_no_silence(harness: Harness, fault: Fault) -> None:
    """Nothing is claimed about what was not read."""
    harness.server.controllers.refuses_pods = (
        'pods "x" is forbidden: exceeded quota: crawls, requested: pods=1'
    )
    harness.server.faults.add("GET", "/events.*continue=", fault, times=None)
    for reason in _refused(harness, 600, "FailedCreate"):
        assert (reason or "").endswith("; not all events that explain this were read"), reason
    harness.server.faults.clear()
    assert {"exceeded quota" in (one.reason or "") for one in harness.poll().observations} == {True}


def test_a_job_that_was_suspended_and_resumed_has_executed_twice(harness: Harness) -> None:
    """A queue reclaimed its capacity and returned it before the first end was on record."""
    harness.deploy()
    harness.server.controllers.counts_ends = False
    harness.server.pod_ends(
        harness.name(), 11, "Error", '{"runner": "1", "finish_reason": "shutdown", "exit": 11}'
    )
    harness.server.change_pod(
        harness.name(), lambda pod: pod["metadata"].update(creationTimestamp="2026-01-05T12:00:00Z")
    )
    second = harness.server.controllers.make_pod(harness.server.job(harness.name()))
    assert (harness.see().phase, harness.see().reason) == (
        Phase.WAITING,
        "Waiting for the scheduler; Another pod of its Job has ended (exit 11)",
    )
    harness.server.store.update(
        PODS, key_of(second), lambda pod: pod["spec"].update(nodeName="node-1")
    )
    harness.server.controllers.end_pod(second, 1)
    end = harness.see().end
    assert end is not None
    assert end.message == "Another pod of its Job has ended (exit 11)"


def test_the_previous_attempt_of_another_run_is_nobody_s_business(harness: Harness) -> None:
    harness.deploy()
    harness.deploy(2, run_id=RUN + 1)
    assert len(harness.poll().observations) == 1
    assert [task.key for task in harness.cluster.inventory()] == [
        (RUN, 0, 1),
        (RUN + 1, 0, 1),
        (RUN + 1, 1, 1),
    ]


@pytest.mark.parametrize(
    "after",
    [
        b"",
        b"short\n" * 100,
        b"x" * 9000 + b"\n",
        b"line\n" + b"y" * 5000 + b"\n" + b"z" * 300 + b"\n",
    ],
    ids=["last", "many lines", "a long line", "long ones"],
)
@pytest.mark.parametrize(
    "before", [b"", b"w" * 20_000 + b"\n"], ids=["nothing before", "a long line before"]
)
def test_counters_are_found_beside_whatever_else_is_printed(
    harness: Harness, before: bytes, after: bytes
) -> None:
    """The API returns the beginning of the last lines, and cuts off the newest."""
    harness.deploy()
    line = b'{"crawl_progress": {"pages": 4}}\n'
    harness.server.pod_prints(harness.name(), before + line + after)
    found = harness.see().counters.pages
    assert found == (4 if len(after) < 4000 else None), "unknown is not zero"


def test_what_is_kept_of_a_log_is_its_end(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_prints(
        harness.name(), b"".join(b"%05d" % n + b"x" * 30_000 + b"\n" for n in range(50))
    )
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert (details.log_tail or "").endswith("x\n")
    assert len(details.log_tail or "") == LOG_TAIL_BYTES
    harness.server.pod_prints(harness.name(), b"last\n")
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert (details.log_tail or "").endswith("x\nlast\n")


# --- whose a name is ------------------------------------------------------------------------------


def test_a_task_that_was_never_offered_is_not_what_has_its_name(harness: Harness) -> None:
    """It is the Job of another database that also counts its runs from 1."""
    harness.deploy()
    harness.server.pod_ends(
        harness.name(), 0, "Completed", '{"runner": "1", "finish_reason": "finished", "exit": 0}'
    )
    stranger = replace(harness.without_uid(), task_id=999999)
    seen = harness.poll(stranger).observations[0]
    assert (seen.phase, seen.uid, seen.end) == (Phase.ABSENT, None, None)
    assert seen.reason == (
        f"Another Job ({harness.uids[0]}) has its name and belongs to task 100; this is task 999999"
    )
    assert list(harness.cluster.details(run_ref(RUN), [stranger])) == []
    own = harness.poll(harness.without_uid()).observations[0]
    assert (own.phase, own.uid) == (Phase.ENDED, harness.uids[0]), (
        "the answer to its creation was lost"
    )


def test_without_an_id_a_job_is_nobody_s(harness: Harness) -> None:
    harness.deploy()
    harness.server.change_job(
        harness.name(), lambda job: job["metadata"]["labels"].pop(labels.TASK_ID)
    )
    seen = harness.poll(harness.without_uid()).observations[0]
    assert seen.phase is Phase.ABSENT
    assert "does not name its task" in (seen.reason or "")
    assert harness.see().phase is Phase.EXECUTING, "whose uid is on record needs no label"


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_a_task_that_was_never_offered_ends_nothing(harness: Harness, gesture: str) -> None:
    harness.deploy()
    getattr(harness.cluster, gesture)(run_ref(RUN), replace(harness.without_uid(), task_id=999999))
    assert harness.calls("DELETE") == 0
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.without_uid())
    assert harness.calls("DELETE", "/jobs/") == 1
