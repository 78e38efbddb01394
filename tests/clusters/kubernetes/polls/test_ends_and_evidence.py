"""Stops and kills, what is read before and after them, and letting go of what is on record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, RequestRefused
from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.kubernetes.jobs import finalizers
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.clusters.kubernetes.polls import details
from crawler_lifecycle.clusters.kubernetes.polls.details import to_bytes
from crawler_lifecycle.clusters.kubernetes.polls.termination_message import split_statistics
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.last_words import last_words
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Phase
from tests.clusters.kubernetes.polls.world import RUN, World
from tests.support.examples import examples
from tests.support.kube_api import Answer, Garbage, LostAnswer, Reset, Silence
from tests.support.kube_api.store import PODS
from tests.support.kube_objects import NO_LOGS
from tests.support.run_refs import run_ref


def _deletes(world: World, resource: str) -> list[Any]:
    return [
        seen.body
        for seen in world.server.requests
        if seen.method == "DELETE" and f"/{resource}/" in seen.path
    ]


def _finalizers(world: World, index: int = 0) -> list[str]:
    return [
        name
        for pod in world.server.pods(world.name(index))
        for name in pod["metadata"].get("finalizers", [])
    ]


# --- stop and kill --------------------------------------------------------------------------------


def test_three_stops_are_one_deletion(world: World) -> None:
    world.deploy()
    for _ in range(3):
        world.cluster.stop(run_ref(RUN), world.ref())
    [body] = _deletes(world, "jobs")
    assert body["propagationPolicy"] == "Foreground"
    assert body["preconditions"] == {"uid": world.uids[0]}
    assert _deletes(world, "pods") == [], (
        "the Job's own cascade ends its pods, with their own grace"
    )
    assert world.see(stopping=True).phase is Phase.EXECUTING


def test_a_stop_whose_answer_was_lost_is_done_once(world: World) -> None:
    world.deploy()
    world.server.faults.add("DELETE", "/jobs/", LostAnswer())
    with pytest.raises(ClusterUnavailable):
        world.cluster.stop(run_ref(RUN), world.ref())
    world.cluster.stop(run_ref(RUN), world.ref())
    assert len(_deletes(world, "jobs")) == 1


@pytest.mark.parametrize("gesture", ["stop", "kill"])
@pytest.mark.parametrize("fault", [Answer(500), Answer(403), Reset()], ids=repr)
def test_an_end_that_cannot_be_asked_for_is_an_error(
    world: World, gesture: str, fault: Any
) -> None:
    world.deploy()
    world.server.faults.add("DELETE", "/jobs/", fault, times=None)
    with pytest.raises(ApiError):
        getattr(world.cluster, gesture)(run_ref(RUN), world.ref())


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_a_job_that_is_replaced_at_that_moment_is_left_alone(world: World, gesture: str) -> None:
    """Between reading it and deleting it another one took its name: the precondition sees to
    that.
    """
    world.deploy()
    world.server.faults.add(
        "DELETE", "/jobs/", Answer(409, "Precondition failed: UID in precondition")
    )
    getattr(world.cluster, gesture)(run_ref(RUN), world.ref())
    assert "deletionTimestamp" not in world.server.job(world.name())["metadata"]


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_a_task_that_ended_is_left_as_it_is(world: World, gesture: str) -> None:
    world.deploy()
    world.server.pod_ends(world.name(), 0)
    world.forget_calls()
    getattr(world.cluster, gesture)(run_ref(RUN), world.ref())
    assert world.calls("DELETE") == 0


def test_a_job_whose_manager_another_hand_changed_is_stopped_before_its_uid_is_on_record(
    world: World,
) -> None:
    world.deploy()
    world.server.change_job(
        world.name(), lambda job: job["metadata"]["labels"].update({labels.MANAGED_BY: "helm"})
    )
    world.cluster.stop(run_ref(RUN), world.without_uid())
    assert len(_deletes(world, "jobs")) == 1


def test_a_job_with_our_name_and_without_our_labels_is_nobody_s_to_stop(world: World) -> None:
    world.deploy()
    world.server.change_job(world.name(), lambda job: job["metadata"]["labels"].clear())
    world.cluster.stop(run_ref(RUN), world.without_uid())
    assert _deletes(world, "jobs") == []


def test_a_suspended_job_is_stopped(world: World) -> None:
    world.server.controllers.makes_pods = False
    world.deploy(started=False)
    world.server.change_job(world.name(), lambda job: job["spec"].update(suspend=True))
    world.cluster.stop(run_ref(RUN), world.ref())
    assert world.see(stopping=True).phase is Phase.GONE


def test_pods_that_outlived_their_job_are_stopped(world: World) -> None:
    world.deploy()
    world.api.delete(world.api.jobs_path(world.name()), {"propagationPolicy": "Orphan"})
    assert world.see().phase is Phase.EXECUTING
    world.cluster.stop(run_ref(RUN), world.ref())
    world.cluster.stop(run_ref(RUN), world.ref())
    [body] = _deletes(world, "pods")
    assert "gracePeriodSeconds" not in body, "its own grace"


def test_a_kill_shortens_the_grace_and_removes_no_record(world: World) -> None:
    world.deploy()
    world.cluster.stop(run_ref(RUN), world.ref())
    world.cluster.kill(run_ref(RUN), world.ref())
    [body] = _deletes(world, "pods")
    assert body["gracePeriodSeconds"] == 1
    assert world.see(stopping=True).phase is Phase.EXECUTING, (
        "nothing is over before its node says so"
    )


def test_no_node_ever_hears_of_a_longer_grace_before_a_kill(world: World) -> None:
    """A kubelet keeps the grace that it began with, and deleting the Job has its pods deleted with
    their own.
    """
    world.deploy()
    world.cluster.kill(run_ref(RUN), world.ref())
    deleted = [
        seen.path.split("/")[-2] for seen in world.server.requests if seen.method == "DELETE"
    ]
    assert deleted == ["pods", "jobs"]
    [pod] = world.server.pods(world.name())
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 1


def test_a_pod_that_comes_while_its_job_is_killed_is_killed_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.controllers.makes_pods = False
    world.deploy(started=False)
    delete = world.api.delete

    def late(path: str, options: dict[str, object]) -> None:
        # The controller makes it between the list of the pods and the end of the Job.
        if "/jobs/" in path:
            world.server.controllers.make_pod(world.server.job(world.name()))
            world.server.pod_starts(world.name())
        delete(path, options)

    monkeypatch.setattr(world.api, "delete", late)
    world.cluster.kill(run_ref(RUN), world.ref())
    [body] = _deletes(world, "pods")
    assert body["gracePeriodSeconds"] == 1


def test_what_is_said_of_a_pod_whose_grace_was_shortened_stays_true_on_a_node_that_keeps_it(
    world: World,
) -> None:
    world.stand_still()
    world.deploy()
    world.cluster.stop(run_ref(RUN), world.ref())
    own = world.server.pods(world.name())[0]["spec"]["terminationGracePeriodSeconds"]
    plain = world.see(stopping=True).reason or ""
    assert plain.endswith("at the latest"), plain
    world.cluster.kill(run_ref(RUN), world.ref())
    forced = world.see(stopping=True).reason or ""
    assert f"if its node had already begun its grace of {own} s" in forced
    world.later = timedelta(seconds=own + 20)
    assert world.see(stopping=True).reason == forced, "the same sentence until then"
    world.later = timedelta(seconds=own + 40)
    assert "does not confirm" in (world.see(stopping=True).reason or "")


def test_a_killed_task_on_a_lost_node_is_never_called_stopped(world: World) -> None:
    world.deploy()
    world.server.node_lost()
    world.cluster.kill(run_ref(RUN), world.ref())
    for missed_s in (None, 3600.0):
        seen = world.see(stopping=True, missed_s=missed_s)
        assert seen.phase is Phase.EXECUTING
        assert "shutting down" in (seen.reason or "")


# --- details --------------------------------------------------------------------------------------


def test_the_log_of_an_ended_task_is_read_and_cut(world: World) -> None:
    world.deploy(2)
    world.server.pod_prints(
        world.name(0), b"old\n" * 100 + "é".encode() * LOG_TAIL_BYTES + b"\nlast\n"
    )
    world.server.pod_ends(
        world.name(0), 3, message='{"runner": "1", "exit": 3, "pages": 9, "peak_memory": 4096}'
    )
    world.server.pod_prints(world.name(1), b'{"crawl_progress": {"pages": 2}}\n')
    first, second = world.cluster.details(run_ref(RUN), [world.ref(0), world.ref(1)])
    assert first.log_tail is not None
    assert len(first.log_tail.encode()) <= LOG_TAIL_BYTES
    assert first.log_tail.endswith("last\n")
    assert (first.counters.pages, first.peak_memory) == (9, 4096)
    assert (second.counters.pages, second.log_tail) == (2, '{"crawl_progress": {"pages": 2}}\n')


def test_the_last_line_of_statistics_counts_and_takes_no_room_in_the_log(world: World) -> None:
    world.deploy()
    told = {f"downloader/response_status_count/{n}": n for n in range(180)}
    line = json.dumps({"crawl_stats": told}).encode()
    assert 7000 < len(line) < 8192
    lines = [
        b'{"crawl_stats": {"forged": 1}}',
        b"x" * LOG_TAIL_BYTES,
        b"half a line" + line,
        b'{"crawl_progress": {"pages": 2}}',
        b'{"crawl_stats": {"cut": ',
        b'{"crawl_stats": {"a": NaN, "b": 1}, "',
    ]
    world.server.pod_prints(world.name(), b"\n".join(lines) + b"\n")
    world.server.pod_ends(world.name(), 0, message='{"runner": "1", "exit": 0}')
    [details] = world.cluster.details(run_ref(RUN), [world.ref()])
    assert details.statistics == told
    kept = (details.log_tail or "").encode()
    assert len(kept) == LOG_TAIL_BYTES
    assert b"half a line" + lines[3] in kept
    assert b"response_status_count" not in kept


@pytest.mark.parametrize(("code", "kept"), [(1, True), (0, False)])
def test_the_error_of_a_failed_crawler_is_kept_also_far_before_the_end(
    world: World, code: int, kept: bool
) -> None:
    world.deploy()
    noise = b"2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/>\n"
    error = b"2026-03-01 12:00:00 [shop] ERROR: no feed\n"
    world.server.pod_prints(world.name(), noise * 100 + error + noise * 3_300)
    world.server.pod_ends(world.name(), code, message=f'{{"runner": "1", "exit": {code}}}')
    [details] = world.cluster.details(run_ref(RUN), [world.ref()])
    assert (last_words(details.log_tail or "") == "no feed") is kept
    assert (details.log_tail or "").endswith(noise.decode())


@settings(max_examples=examples(200))
@given(before=st.binary(max_size=40), body=st.binary(max_size=40), after=st.binary(max_size=40))
def test_whatever_a_crawler_prints_is_no_more_than_statistics(
    before: bytes, body: bytes, after: bytes
) -> None:
    log = before + b'{"crawl_stats": {' + body + b"}}\n" + after
    rest, told = split_statistics(log)
    assert (rest == log) == (told is None)
    assert bounds.statistics(told or {}) == (told or {})


SAID = [Garbage(words, "text/plain") for words in NO_LOGS]


@pytest.mark.parametrize("fault", [Answer(500), Answer(404), Silence(30), *SAID], ids=repr)
def test_a_log_that_is_gone_is_left_out(
    world: World, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept before the stop must not be replaced by nothing."""
    monkeypatch.setattr(details, "KEPT_S", 0.2)
    world.deploy()
    world.server.pod_prints(world.name(), b"line\n")
    world.server.faults.add("GET", "/log", fault, times=None)
    assert list(world.cluster.details(run_ref(RUN), [world.ref()])) == []


def test_a_crawlers_own_word_about_its_log_file_is_kept(world: World) -> None:
    words = 'failed to open log file "/data/crawl.log": permission denied'
    world.deploy()
    world.server.pod_prints(world.name(), words.encode() + b"\n")
    [details] = world.cluster.details(run_ref(RUN), [world.ref()])
    assert words in (details.log_tail or "")


def test_a_task_that_waits_has_no_log_and_none_is_asked_for(world: World) -> None:
    world.deploy(started=False)
    world.server.pod_waits(world.name(), "ImagePullBackOff")
    world.forget_calls()
    assert list(world.cluster.details(run_ref(RUN), [world.ref()])) == []
    assert world.calls("GET", "/log") == 0


def test_details_of_an_unreadable_cluster_are_an_error(world: World) -> None:
    world.deploy()
    world.server.faults.add("GET", r"/pods\?", Answer(503))
    with pytest.raises(ClusterUnavailable):
        list(world.cluster.details(run_ref(RUN), [world.ref()]))


def test_the_log_of_another_row_is_not_read(world: World) -> None:
    """Whoever may see a task may see its log; another database's task of the same name is none of
    theirs.
    """
    world.deploy()
    world.server.pod_prints(world.name(), b"line\n")
    logs = PodLogs(world.api)
    assert logs.read(run_ref(RUN), replace(world.without_uid(), task_id=999999), 0, 100) is None
    own = logs.read(run_ref(RUN), world.without_uid(), 0, 100)
    assert own is not None
    assert own.data == b"line\n"


def test_the_pod_of_another_job_has_nothing_to_say(world: World) -> None:
    world.deploy()
    world.server.pod_prints(world.name(), b"line\n")
    assert list(world.cluster.details(run_ref(RUN), [replace(world.ref(), uid="another")])) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[
            ("64Mi", 64 << 20),
            ("1500000k", 1_500_000_000),
            ("12", 12),
            ("2e3", 2000),
            ("1.5Gi", 3 << 29),
            ("100m", 0),
        ],
        *[
            ("Mi", None),
            ("9e999999Ei", None),
            ("-1", None),
            ("nan", None),
            ("1Qi", None),
            ("", None),
        ],
    ],
)
def test_quantities(text: str, size: int | None) -> None:
    assert to_bytes(text) == size


# --- letting go -----------------------------------------------------------------------------------


def test_what_ended_is_kept_and_nothing_else(world: World) -> None:
    world.deploy(3)
    world.server.pod_ends(world.name(1), 3)
    [kept] = world.finalizers.kept()
    assert (kept.key, kept.uid, kept.ran) == ((RUN, 1, 1), world.uids[1], True)
    assert kept.ended_at is not None


def test_letting_go_is_two_changes_and_leaves_the_polls(world: World) -> None:
    world.deploy(2)
    for index in range(2):
        world.server.pod_ends(world.name(index), 0)
    world.forget_calls()
    world.finalizers.release(run_ref(RUN), [world.ref(0)])
    assert (world.calls("PATCH"), world.calls()) == (2, 3)
    assert labels.FINALIZER not in _finalizers(world, 0)
    assert labels.FINALIZER in _finalizers(world, 1)
    jobs = [world.server.job(world.name(index)) for index in range(2)]
    assert labels.SETTLED in jobs[0]["metadata"]["labels"]
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in jobs] == [3_600, 7 * 86_400]
    assert world.kept() == [(RUN, 1, 1)]
    world.finalizers.release(run_ref(RUN), [world.ref(0)])
    assert world.calls("PATCH") == 2, "once is enough"
    assert world.see(0).phase is Phase.ENDED, "who asks by name is still told"


def test_a_stopped_task_is_gone_once_it_is_let_go(world: World) -> None:
    world.deploy()
    world.cluster.stop(run_ref(RUN), world.ref())
    world.server.controllers.end_pod(world.server.pod(world.name()), 11)
    assert world.see(stopping=True).phase is Phase.ENDED
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert world.server.pods() == []
    assert world.see(stopping=True).phase is Phase.GONE


def test_what_executes_is_never_let_go(world: World) -> None:
    world.deploy()
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert labels.FINALIZER in _finalizers(world)


@pytest.mark.parametrize(
    ("queue", "resumed", "left"),
    [(None, False, (False, 0, 1)), ("night", False, (True, 0, 1)), ("night", True, (False, 1, 1))],
    ids=["suspended", "held by a queue", "resumed by its queue"],
)
def test_a_job_that_was_suspended_under_its_pod_never_starts_another_one_and_ends(
    world: World, queue: str | None, resumed: bool, left: tuple[bool, int, int]
) -> None:
    """A queue that takes its room back suspends the Job, and resumes it when there is room
    again.
    """
    world.deploy()
    world.server.controllers.counts_ends = False

    def suspend(job: Any) -> None:
        job["spec"].update(suspend=True)
        job["metadata"]["labels"] |= {labels.QUEUE: queue} if queue else {}

    world.server.change_job(world.name(), suspend)
    world.server.controllers.end_pod(world.server.pod(world.name()), 143)
    if resumed:  # after the end was read, and before it is on record
        _deleted_by_controller(world)
        world.server.change_job(world.name(), lambda job: job["spec"].update(suspend=False))
    world.finalizers.release(run_ref(RUN), [world.ref()])
    job = world.server.job(world.name())
    assert (
        tuple(job["spec"][name] for name in ("suspend", "parallelism", "activeDeadlineSeconds"))
        == left
    )
    assert job["metadata"]["labels"].get(labels.QUEUE) == queue, "its queue sees it end"
    assert (_deletes(world, "jobs"), world.kept()) == ([], []), "who polls may delete nothing"


def _crawler_ends(world: World, index: int = 0, ago_s: float = 120) -> None:
    """The crawler's own container ends, and one beside it goes on."""
    at = (world.now() - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def change(pod: Any) -> None:
        [crawler] = pod["status"]["containerStatuses"]
        crawler["state"] = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": at}}
        proxy = {
            "name": "mesh-proxy",
            "state": {"running": {"startedAt": at}},
            "ready": True,
            "restartCount": 0,
        }
        pod["status"]["containerStatuses"] = [crawler, proxy]

    world.server.change_pod(world.name(index), change)


def test_what_outlives_its_crawler_is_kept_until_the_end_is_on_record_and_then_ended(
    world: World,
) -> None:
    world.deploy(2)
    _crawler_ends(world)
    assert world.see().phase is Phase.ENDED
    assert world.kept() == [(RUN, 0, 1)]
    [held] = [pod for pod in finalizers.list_held(world.api) if finalizers.waits(pod)]
    assert (held.metadata.labels[labels.TASK], held.status.phase) == ("0", "Running")
    world.finalizers.release(run_ref(RUN), [world.ref()])
    [pod] = world.server.pods(world.name())
    assert pod["spec"]["activeDeadlineSeconds"] == 1
    assert labels.SETTLED in pod["metadata"]["labels"]
    assert _finalizers(world, 0).count(labels.FINALIZER) == 0
    assert (_deletes(world, "pods"), _deletes(world, "jobs")) == ([], []), (
        "its record and its log stay for the day"
    )
    assert world.kept() == []
    assert "activeDeadlineSeconds" not in world.server.pods(world.name(1))[0]["spec"]


def test_what_is_beside_a_crawler_has_a_minute_to_end_by_itself(world: World) -> None:
    world.deploy()
    _crawler_ends(world, ago_s=30)
    assert world.kept() == []
    world.server.pod_ends(world.name(), 0)
    assert world.kept() == [(RUN, 0, 1)]
    world.finalizers.release(run_ref(RUN), [world.ref()])
    [pod] = world.server.pods(world.name())
    assert "activeDeadlineSeconds" not in pod["spec"], "nothing runs any more"


def test_what_runs_is_listed_now_and_then_and_not_forgotten_in_between(world: World) -> None:
    world.deploy()
    _crawler_ends(world)
    world.forget_calls()
    for _ in range(5):
        assert world.kept() == [(RUN, 0, 1)]
    assert world.calls("GET", "status.phase%3DRunning") == 1


def test_an_administrator_finds_and_ends_what_outlived_its_crawler(world: World) -> None:
    world.deploy()
    _crawler_ends(world)
    [held] = finalizers.list_held(world.api)
    assert finalizers.remove_finalizer(world.api, held)
    assert world.server.pods(world.name())[0]["spec"]["activeDeadlineSeconds"] == 1


def _taken_back(world: World, *, suspended: bool) -> None:
    """What the Job controller does to a pod without a node when the Job is suspended; perhaps
    resumed since then.
    """
    world.server.change_job(world.name(), lambda job: job["spec"].update(suspend=suspended))
    _deleted_by_controller(world)


def _deleted_by_controller(world: World) -> None:
    """A suspension: the Job controller lets go of the pod first, and the Job keeps a condition."""
    resumed = {"type": "Suspended", "status": "False", "reason": "JobResumed"}
    world.server.change_job(
        world.name(), lambda job: job["status"].setdefault("conditions", []).append(resumed)
    )
    tracking = "batch.kubernetes.io/job-tracking"
    world.server.change_pod(
        world.name(), lambda pod: pod["metadata"]["finalizers"].remove(tracking)
    )
    [pod] = world.server.pods(world.name())
    world.api.delete(world.api.pods_path(pod["metadata"]["name"]), {"gracePeriodSeconds": 0})


def test_a_job_that_is_resumed_while_its_pod_ends_has_not_ended(world: World) -> None:
    """Between the end of the pod and the next one nothing is there that executes, and nothing has
    ended either.
    """
    world.deploy()
    world.server.controllers.counts_ends = False
    _deleted_by_controller(world)
    world.server.controllers.end_pod(world.server.pod(world.name()), 143)
    assert (world.see().phase, world.see().reason) == (Phase.WAITING, "Waiting for the Job's pod")
    world.server.change_job(world.name(), lambda job: job["spec"].update(suspend=True))
    seen = world.see()
    assert seen.end is not None
    assert (seen.end.message, seen.end.disruption) == (
        "its Job was suspended by somebody else",
        "interrupted",
    )


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "resumed"])
def test_a_pod_that_a_queue_took_back_before_it_had_a_node_goes_and_its_task_waits(
    world: World, suspended: bool
) -> None:
    world.deploy(started=False)
    _taken_back(world, suspended=suspended)
    assert world.see().phase is Phase.WAITING
    assert world.kept() == []
    assert world.server.pods(world.name()) == []
    assert world.see().phase is Phase.WAITING
    assert _deletes(world, "jobs") == [], "the Job goes on"


def test_a_stop_of_a_task_whose_pod_a_queue_took_back_is_ours(world: World) -> None:
    world.deploy(started=False)
    _taken_back(world, suspended=True)
    world.cluster.stop(run_ref(RUN), world.ref())
    assert world.see(stopping=True).phase is not Phase.ENDED, "nothing ran, so the pod is no end"
    assert (world.kept(), world.see(stopping=True).phase) == ([], Phase.GONE)


def test_a_pod_without_a_node_that_a_person_deleted_is_kept_as_an_end(world: World) -> None:
    world.deploy(started=False)
    [pod] = world.server.pods(world.name())
    world.api.delete(world.api.pods_path(pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    assert world.see().phase is Phase.ENDED
    assert world.kept() == [(RUN, 0, 1)]


def test_another_object_under_the_name_is_not_let_go(world: World) -> None:
    world.deploy()
    world.server.pod_ends(world.name(), 0)
    world.finalizers.release(run_ref(RUN), [replace(world.ref(), uid="another")])
    assert labels.FINALIZER in _finalizers(world)


def test_the_end_of_another_row_is_not_let_go(world: World) -> None:
    world.deploy()
    world.server.pod_ends(world.name(), 0)
    world.finalizers.release(run_ref(RUN), [replace(world.without_uid(), task_id=999999)])
    assert labels.FINALIZER in _finalizers(world)
    world.finalizers.release(run_ref(RUN), [world.without_uid()])
    assert labels.FINALIZER not in _finalizers(world)


def test_a_pod_without_its_run_is_read_and_let_go(world: World) -> None:
    world.deploy()
    world.server.pod_prints(world.name(), b"line\n")
    world.server.change_pod(world.name(), lambda pod: pod["metadata"]["labels"].pop(labels.RUN))
    world.server.pod_ends(world.name(), 0)
    [details] = world.cluster.details(run_ref(RUN), [world.ref()])
    assert details.log_tail == "line\n"
    assert world.kept() == [(RUN, 0, 1)]
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert labels.FINALIZER not in _finalizers(world)
    assert world.kept() == []
    world.forget_calls()
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert world.calls("PATCH") == 0, "once is enough"


@pytest.mark.parametrize(
    ("label", "value"),
    [(labels.MANAGED_BY, None), (labels.MANAGED_BY, "helm"), (labels.RUN, "helm"), (labels.RUN_UID, "helm"),
     (labels.TASK_ID, None), (labels.ATTEMPT, "helm")],
)  # fmt: skip
def test_a_pod_whose_labels_were_edited_is_let_go(
    world: World, label: str, value: str | None
) -> None:
    """By its finalizer and the uid of its Job; to be held for ever would hold its Job and its
    namespace as well.
    """
    world.deploy(2)

    def change(found: Any) -> None:
        told = found["metadata"]["labels"]
        found["metadata"]["labels"] = {
            key: it for key, it in {**told, label: value}.items() if it is not None
        }

    world.server.change_pod(world.name(), change)
    world.server.change_job(world.name(), change)
    world.server.pod_ends(world.name(), 0)
    assert world.see().phase is Phase.ENDED
    [kept] = world.finalizers.kept()
    assert (kept.key, kept.uid) == ((RUN, 0, 1), world.uids[0])
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert labels.FINALIZER not in _finalizers(world)
    assert labels.FINALIZER in _finalizers(world, 1)
    assert world.kept() == []


def test_what_no_list_of_ours_has_is_looked_for_seldom_and_holds_nothing_up(world: World) -> None:
    world.deploy(2)
    world.server.change_pod(
        world.name(), lambda pod: pod["metadata"]["labels"].pop(labels.MANAGED_BY)
    )
    for index in range(2):
        world.server.pod_ends(world.name(index), 0)
    world.forget_calls()
    for _ in range(5):
        assert world.kept() == [(RUN, 0, 1), (RUN, 1, 1)]
    assert world.calls("GET", r"/pods\?.*managed-by%21%3D") == 1
    world.server.faults.add("GET", r"/pods\?.*managed-by%21%3D", Answer(500), times=None)
    another = Finalizers(world.api, world.now)
    assert [end.key for end in another.kept()] == [(RUN, 1, 1)]


@pytest.mark.parametrize(
    "name", ["crawl-7-0", "crawl-7-0-01", "other-7-0-1", "crawl-7-0-x", f"crawl-{10**30}-0-1", ""]
)
def test_a_pod_that_says_neither_its_task_nor_its_job_is_left(world: World, name: str) -> None:
    world.deploy()
    world.server.pod_ends(world.name(), 0)

    def change(pod: Any) -> None:
        pod["metadata"]["labels"].pop(labels.RUN)
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = name

    world.server.change_pod(world.name(), change)
    assert world.kept() == []


def test_a_right_that_went_first_is_an_error(world: World) -> None:
    world.deploy()
    world.server.pod_ends(world.name(), 0)
    world.server.deny("patch", "pods")
    with pytest.raises(RequestRefused, match="needs permission to patch pods"):
        world.finalizers.release(run_ref(RUN), [world.ref()])
    world.server.allow("patch", "pods")
    world.finalizers.release(run_ref(RUN), [world.ref()])
    assert world.kept() == []


def test_the_life_of_a_task_is_five_calls(world: World) -> None:
    """Beside what all tasks of a run share: the lists of polls, of details, and of letting go."""
    world.deploy(10)
    refs = [world.ref(index) for index in range(10)]
    list(world.cluster.details(run_ref(RUN), refs))
    for index in range(10):
        world.server.pod_ends(world.name(index), 0)
    list(world.cluster.details(run_ref(RUN), refs))
    assert len(world.finalizers.kept()) == 10
    world.finalizers.release(run_ref(RUN), refs)
    shared = world.calls("GET", r"/(jobs|pods)\?")
    assert world.calls() - shared == 50
    assert shared <= 9


def test_the_details_of_many_take_one_list_and_are_read_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 10,000 pods costs seconds, and as many logs are 160 MB."""
    monkeypatch.setattr("crawler_lifecycle.clusters.kubernetes.polls.details.LOGS_A_TURN", 3)
    world.deploy(10)
    for index in range(10):
        world.server.pod_prints(world.name(index), b"done\n")
        world.server.pod_ends(world.name(index), 0)
    lists = world.calls("GET", r"/pods\?")
    found = iter(world.cluster.details(run_ref(RUN), [world.ref(index) for index in range(10)]))
    next(found)
    assert world.calls("GET", "/log") == 3
    assert len(list(found)) == 9
    assert world.calls("GET", r"/pods\?") == lists + 1


def test_a_placeholder_is_no_time_of_an_end_for_anybody(world: World) -> None:
    """The kubelet writes the beginning of the epoch where it knows no time: nothing has waited
    since 1970.
    """
    world.deploy()
    pod = world.server.pod_ends(world.name(), 137)

    def forget(found: dict[str, Any]) -> None:
        for status in found["status"]["containerStatuses"]:
            status["state"]["terminated"]["finishedAt"] = "1970-01-01T00:00:00Z"

    world.server.store.update(PODS, (world.server.namespace, pod["metadata"]["name"]), forget)
    [kept], [held] = world.finalizers.kept(), finalizers.list_held(world.api)
    assert (kept.ended_at, kept.ran) == (None, False)
    assert finalizers.waits(held)
