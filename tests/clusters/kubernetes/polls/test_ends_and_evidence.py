"""Stops and kills, what is read before and after them, and the release of what is on record."""

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
from tests.clusters.kubernetes.polls.harness import RUN, Harness
from tests.support.examples import examples
from tests.support.kube_api import Answer, Garbage, LostAnswer, Reset, Silence
from tests.support.kube_api.store import PODS
from tests.support.kube_objects import NO_LOGS
from tests.support.run_refs import run_ref


def _deletes(harness: Harness, resource: str) -> list[Any]:
    return [
        seen.body
        for seen in harness.server.requests
        if seen.method == "DELETE" and f"/{resource}/" in seen.path
    ]


def _finalizers(harness: Harness, index: int = 0) -> list[str]:
    return [
        name
        for pod in harness.server.pods(harness.name(index))
        for name in pod["metadata"].get("finalizers", [])
    ]


# --- stop and kill --------------------------------------------------------------------------------


def test_three_stops_are_one_deletion(harness: Harness) -> None:
    harness.deploy()
    for _ in range(3):
        harness.cluster.stop(run_ref(RUN), harness.ref())
    [body] = _deletes(harness, "jobs")
    assert body["propagationPolicy"] == "Foreground"
    assert body["preconditions"] == {"uid": harness.uids[0]}
    assert _deletes(harness, "pods") == [], (
        "the Job's own cascade ends its pods, with their own grace"
    )
    assert harness.see(stopping=True).phase is Phase.EXECUTING


def test_a_stop_whose_answer_was_lost_is_done_once(harness: Harness) -> None:
    harness.deploy()
    harness.server.faults.add("DELETE", "/jobs/", LostAnswer())
    with pytest.raises(ClusterUnavailable):
        harness.cluster.stop(run_ref(RUN), harness.ref())
    harness.cluster.stop(run_ref(RUN), harness.ref())
    assert len(_deletes(harness, "jobs")) == 1


@pytest.mark.parametrize("gesture", ["stop", "kill"])
@pytest.mark.parametrize("fault", [Answer(500), Answer(403), Reset()], ids=repr)
def test_an_end_that_cannot_be_asked_for_is_an_error(
    harness: Harness, gesture: str, fault: Any
) -> None:
    harness.deploy()
    harness.server.faults.add("DELETE", "/jobs/", fault, times=None)
    with pytest.raises(ApiError):
        getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref())


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_a_job_that_is_replaced_at_that_moment_is_left_alone(
    harness: Harness, gesture: str
) -> None:
    """Between reading and deletion, another Job took its name: the precondition protects that one."""
    harness.deploy()
    harness.server.faults.add(
        "DELETE", "/jobs/", Answer(409, "Precondition failed: UID in precondition")
    )
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref())
    assert "deletionTimestamp" not in harness.server.job(harness.name())["metadata"]


@pytest.mark.parametrize("gesture", ["stop", "kill"])
def test_a_task_that_ended_is_left_as_it_is(harness: Harness, gesture: str) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0)
    harness.forget_calls()
    getattr(harness.cluster, gesture)(run_ref(RUN), harness.ref())
    assert harness.calls("DELETE") == 0


def test_a_job_whose_manager_another_hand_changed_is_stopped_before_its_uid_is_on_record(
    harness: Harness,
) -> None:
    harness.deploy()
    harness.server.change_job(
        harness.name(), lambda job: job["metadata"]["labels"].update({labels.MANAGED_BY: "helm"})
    )
    harness.cluster.stop(run_ref(RUN), harness.without_uid())
    assert len(_deletes(harness, "jobs")) == 1


def test_a_job_with_our_name_and_without_our_labels_is_nobody_s_to_stop(harness: Harness) -> None:
    harness.deploy()
    harness.server.change_job(harness.name(), lambda job: job["metadata"]["labels"].clear())
    harness.cluster.stop(run_ref(RUN), harness.without_uid())
    assert _deletes(harness, "jobs") == []


def test_a_job_whose_variables_another_hand_changed_hides_no_other_task(harness: Harness) -> None:
    harness.deploy(tasks=4)

    def write_args(index: int, value: str) -> None:
        def change(job: dict[str, Any]) -> None:
            for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]:
                if variable["name"] == "CRAWL_ARGS":
                    variable["value"] = value

        harness.server.change_job(harness.name(index), change)

    write_args(0, "[" * 100_000)
    write_args(1, "[1]")
    harness.server.change_job(
        harness.name(2),
        lambda job: job["metadata"].setdefault("annotations", {}).update({labels.RECORD: "[1]"}),
    )
    found = harness.cluster.task_records(run_ref(RUN))
    assert [(one.index, one.args, one.record) for one in found] == [(2, {}, {}), (3, {}, {})]


def test_a_suspended_job_is_stopped(harness: Harness) -> None:
    harness.server.controllers.makes_pods = False
    harness.deploy(started=False)
    harness.server.change_job(harness.name(), lambda job: job["spec"].update(suspend=True))
    harness.cluster.stop(run_ref(RUN), harness.ref())
    assert harness.see(stopping=True).phase is Phase.GONE


def test_pods_that_outlived_their_job_are_stopped(harness: Harness) -> None:
    harness.deploy()
    harness.api.delete(harness.api.jobs_path(harness.name()), {"propagationPolicy": "Orphan"})
    assert harness.see().phase is Phase.EXECUTING
    harness.cluster.stop(run_ref(RUN), harness.ref())
    harness.cluster.stop(run_ref(RUN), harness.ref())
    [body] = _deletes(harness, "pods")
    assert "gracePeriodSeconds" not in body, "its own grace"


def test_a_kill_shortens_the_grace_and_removes_no_record(harness: Harness) -> None:
    harness.deploy()
    harness.cluster.stop(run_ref(RUN), harness.ref())
    harness.cluster.kill(run_ref(RUN), harness.ref())
    [body] = _deletes(harness, "pods")
    assert body["gracePeriodSeconds"] == 1
    assert harness.see(stopping=True).phase is Phase.EXECUTING, (
        "nothing is over before its node says so"
    )


def test_no_node_ever_hears_of_a_longer_grace_before_a_kill(harness: Harness) -> None:
    """A kubelet keeps its first grace period, and the pods of a deleted Job are deleted with their
    own.
    """
    harness.deploy()
    harness.cluster.kill(run_ref(RUN), harness.ref())
    deleted = [
        seen.path.split("/")[-2] for seen in harness.server.requests if seen.method == "DELETE"
    ]
    assert deleted == ["pods", "jobs"]
    [pod] = harness.server.pods(harness.name())
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 1


def test_a_pod_that_comes_while_its_job_is_killed_is_killed_too(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.server.controllers.makes_pods = False
    harness.deploy(started=False)
    delete = harness.api.delete

    def late(path: str, options: dict[str, object]) -> None:
        # The controller creates it between the list of the pods and the end of the Job.
        if "/jobs/" in path:
            harness.server.controllers.make_pod(harness.server.job(harness.name()))
            harness.server.pod_starts(harness.name())
        delete(path, options)

    monkeypatch.setattr(harness.api, "delete", late)
    harness.cluster.kill(run_ref(RUN), harness.ref())
    [body] = _deletes(harness, "pods")
    assert body["gracePeriodSeconds"] == 1


def test_what_is_said_of_a_pod_whose_grace_was_shortened_stays_true_on_a_node_that_keeps_it(
    harness: Harness,
) -> None:
    harness.stand_still()
    harness.deploy()
    harness.cluster.stop(run_ref(RUN), harness.ref())
    own = harness.server.pods(harness.name())[0]["spec"]["terminationGracePeriodSeconds"]
    plain = harness.see(stopping=True).reason or ""
    assert plain.endswith("at the latest"), plain
    harness.cluster.kill(run_ref(RUN), harness.ref())
    forced = harness.see(stopping=True).reason or ""
    assert f"if its node had already begun its grace of {own} s" in forced
    harness.later = timedelta(seconds=own + 20)
    assert harness.see(stopping=True).reason == forced, "the same sentence until then"
    harness.later = timedelta(seconds=own + 40)
    assert "does not confirm" in (harness.see(stopping=True).reason or "")


def test_a_killed_task_on_a_lost_node_is_never_called_stopped(harness: Harness) -> None:
    harness.deploy()
    harness.server.node_lost()
    harness.cluster.kill(run_ref(RUN), harness.ref())
    for missed_s in (None, 3600.0):
        seen = harness.see(stopping=True, missed_s=missed_s)
        assert seen.phase is Phase.EXECUTING
        assert "shutting down" in (seen.reason or "")


# --- details --------------------------------------------------------------------------------------


def test_the_log_of_an_ended_task_is_read_and_cut(harness: Harness) -> None:
    harness.deploy(2)
    harness.server.pod_prints(
        harness.name(0), b"old\n" * 100 + "é".encode() * LOG_TAIL_BYTES + b"\nlast\n"
    )
    harness.server.pod_ends(
        harness.name(0), 3, message='{"runner": "1", "exit": 3, "pages": 9, "peak_memory": 4096}'
    )
    harness.server.pod_prints(harness.name(1), b'{"crawl_progress": {"pages": 2}}\n')
    first, second = harness.cluster.details(run_ref(RUN), [harness.ref(0), harness.ref(1)])
    assert first.log_tail is not None
    assert len(first.log_tail.encode()) <= LOG_TAIL_BYTES
    assert first.log_tail.endswith("last\n")
    assert (first.counters.pages, first.peak_memory) == (9, 4096)
    assert (second.counters.pages, second.log_tail) == (2, '{"crawl_progress": {"pages": 2}}\n')


def test_the_last_line_of_statistics_counts_and_takes_no_room_in_the_log(harness: Harness) -> None:
    harness.deploy()
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
    harness.server.pod_prints(harness.name(), b"\n".join(lines) + b"\n")
    harness.server.pod_ends(harness.name(), 0, message='{"runner": "1", "exit": 0}')
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert details.statistics == told
    kept = (details.log_tail or "").encode()
    assert len(kept) == LOG_TAIL_BYTES
    assert b"half a line" + lines[3] in kept
    assert b"response_status_count" not in kept


@pytest.mark.parametrize(("code", "kept"), [(1, True), (0, False)])
def test_the_error_of_a_failed_crawler_is_kept_also_far_before_the_end(
    harness: Harness, code: int, kept: bool
) -> None:
    harness.deploy()
    noise = b"2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/>\n"
    error = b"2026-03-01 12:00:00 [shop] ERROR: no feed\n"
    harness.server.pod_prints(harness.name(), noise * 100 + error + noise * 3_300)
    harness.server.pod_ends(harness.name(), code, message=f'{{"runner": "1", "exit": {code}}}')
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
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
    harness: Harness, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was saved before the stop must not be replaced by an empty one."""
    monkeypatch.setattr(details, "KEPT_S", 0.2)
    harness.deploy()
    harness.server.pod_prints(harness.name(), b"line\n")
    harness.server.faults.add("GET", "/log", fault, times=None)
    assert list(harness.cluster.details(run_ref(RUN), [harness.ref()])) == []


def test_a_crawlers_own_word_about_its_log_file_is_kept(harness: Harness) -> None:
    words = 'failed to open log file "/data/crawl.log": permission denied'
    harness.deploy()
    harness.server.pod_prints(harness.name(), words.encode() + b"\n")
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert words in (details.log_tail or "")


def test_a_task_that_waits_has_no_log_and_none_is_asked_for(harness: Harness) -> None:
    harness.deploy(started=False)
    harness.server.pod_waits(harness.name(), "ImagePullBackOff")
    harness.forget_calls()
    assert list(harness.cluster.details(run_ref(RUN), [harness.ref()])) == []
    assert harness.calls("GET", "/log") == 0


def test_details_of_an_unreadable_cluster_are_an_error(harness: Harness) -> None:
    harness.deploy()
    harness.server.faults.add("GET", r"/pods\?", Answer(503))
    with pytest.raises(ClusterUnavailable):
        list(harness.cluster.details(run_ref(RUN), [harness.ref()]))


def test_the_log_of_another_row_is_not_read(harness: Harness) -> None:
    """Whoever may see a task may see its log; a task of another database with the same name does
    not belong to it.
    """
    harness.deploy()
    harness.server.pod_prints(harness.name(), b"line\n")
    logs = PodLogs(harness.api)
    assert logs.read(run_ref(RUN), replace(harness.without_uid(), task_id=999999), 0, 100) is None
    own = logs.read(run_ref(RUN), harness.without_uid(), 0, 100)
    assert own is not None
    assert own.data == b"line\n"


def test_the_pod_of_another_job_has_nothing_to_say(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_prints(harness.name(), b"line\n")
    assert (
        list(harness.cluster.details(run_ref(RUN), [replace(harness.ref(), uid="another")])) == []
    )


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


def test_what_ended_is_kept_and_nothing_else(harness: Harness) -> None:
    harness.deploy(3)
    harness.server.pod_ends(harness.name(1), 3)
    [kept] = harness.finalizers.kept()
    assert (kept.key, kept.uid, kept.ran) == ((RUN, 1, 1), harness.uids[1], True)
    assert kept.ended_at is not None


def test_letting_go_is_two_changes_and_leaves_the_polls(harness: Harness) -> None:
    harness.deploy(2)
    for index in range(2):
        harness.server.pod_ends(harness.name(index), 0)
    harness.forget_calls()
    harness.finalizers.release(run_ref(RUN), [harness.ref(0)])
    assert (harness.calls("PATCH"), harness.calls()) == (2, 3)
    assert labels.FINALIZER not in _finalizers(harness, 0)
    assert labels.FINALIZER in _finalizers(harness, 1)
    jobs = [harness.server.job(harness.name(index)) for index in range(2)]
    assert labels.SETTLED in jobs[0]["metadata"]["labels"]
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in jobs] == [3_600, 7 * 86_400]
    assert harness.kept() == [(RUN, 1, 1)]
    harness.finalizers.release(run_ref(RUN), [harness.ref(0)])
    assert harness.calls("PATCH") == 2, "once is enough"
    assert harness.see(0).phase is Phase.ENDED, "who asks by name is still told"


def test_a_stopped_task_is_gone_once_it_is_let_go(harness: Harness) -> None:
    harness.deploy()
    harness.cluster.stop(run_ref(RUN), harness.ref())
    harness.server.controllers.end_pod(harness.server.pod(harness.name()), 11)
    assert harness.see(stopping=True).phase is Phase.ENDED
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert harness.server.pods() == []
    assert harness.see(stopping=True).phase is Phase.GONE


def test_what_executes_is_never_let_go(harness: Harness) -> None:
    harness.deploy()
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert labels.FINALIZER in _finalizers(harness)


@pytest.mark.parametrize(
    ("queue", "resumed", "left"),
    [(None, False, (False, 0, 1)), ("night", False, (True, 0, 1)), ("night", True, (False, 1, 1))],
    ids=["suspended", "held by a queue", "resumed by its queue"],
)
def test_a_job_that_was_suspended_under_its_pod_never_starts_another_one_and_ends(
    harness: Harness, queue: str | None, resumed: bool, left: tuple[bool, int, int]
) -> None:
    """A queue that reclaims capacity suspends the Job, and resumes it when there is capacity again."""
    harness.deploy()
    harness.server.controllers.counts_ends = False

    def suspend(job: Any) -> None:
        job["spec"].update(suspend=True)
        job["metadata"]["labels"] |= {labels.QUEUE: queue} if queue else {}

    harness.server.change_job(harness.name(), suspend)
    harness.server.controllers.end_pod(harness.server.pod(harness.name()), 143)
    if resumed:  # after the end was read, and before it is recorded
        _deleted_by_controller(harness)
        harness.server.change_job(harness.name(), lambda job: job["spec"].update(suspend=False))
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    job = harness.server.job(harness.name())
    assert (
        tuple(job["spec"][name] for name in ("suspend", "parallelism", "activeDeadlineSeconds"))
        == left
    )
    assert job["metadata"]["labels"].get(labels.QUEUE) == queue, "its queue sees it end"
    assert (_deletes(harness, "jobs"), harness.kept()) == ([], []), "who polls may delete nothing"


def _crawler_ends(harness: Harness, index: int = 0, ago_s: float = 120) -> None:
    """The crawler's own container ends, and a container next to it continues."""
    at = (harness.now() - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

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

    harness.server.change_pod(harness.name(index), change)


def test_what_outlives_its_crawler_is_kept_until_the_end_is_on_record_and_then_ended(
    harness: Harness,
) -> None:
    harness.deploy(2)
    _crawler_ends(harness)
    assert harness.see().phase is Phase.ENDED
    assert harness.kept() == [(RUN, 0, 1)]
    [held] = [pod for pod in finalizers.list_held(harness.api) if finalizers.waits(pod)]
    assert (held.metadata.labels[labels.TASK], held.status.phase) == ("0", "Running")
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    [pod] = harness.server.pods(harness.name())
    assert pod["spec"]["activeDeadlineSeconds"] == 1
    assert labels.SETTLED in pod["metadata"]["labels"]
    assert _finalizers(harness, 0).count(labels.FINALIZER) == 0
    assert (_deletes(harness, "pods"), _deletes(harness, "jobs")) == ([], []), (
        "its record and its log stay for the day"
    )
    assert harness.kept() == []
    assert "activeDeadlineSeconds" not in harness.server.pods(harness.name(1))[0]["spec"]


def test_what_is_beside_a_crawler_has_a_minute_to_end_by_itself(harness: Harness) -> None:
    harness.deploy()
    _crawler_ends(harness, ago_s=30)
    assert harness.kept() == []
    harness.server.pod_ends(harness.name(), 0)
    assert harness.kept() == [(RUN, 0, 1)]
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    [pod] = harness.server.pods(harness.name())
    assert "activeDeadlineSeconds" not in pod["spec"], "nothing runs any more"


def test_what_runs_is_listed_now_and_then_and_not_forgotten_in_between(harness: Harness) -> None:
    harness.deploy()
    _crawler_ends(harness)
    harness.forget_calls()
    for _ in range(5):
        assert harness.kept() == [(RUN, 0, 1)]
    assert harness.calls("GET", "status.phase%3DRunning") == 1


def test_an_administrator_finds_and_ends_what_outlived_its_crawler(harness: Harness) -> None:
    harness.deploy()
    _crawler_ends(harness)
    [held] = finalizers.list_held(harness.api)
    assert finalizers.remove_finalizer(harness.api, held)
    assert harness.server.pods(harness.name())[0]["spec"]["activeDeadlineSeconds"] == 1


def _taken_back(harness: Harness, *, suspended: bool) -> None:
    """Do what the Job controller does to a pod without a node when its Job is suspended, and
    perhaps resumed since then.
    """
    harness.server.change_job(harness.name(), lambda job: job["spec"].update(suspend=suspended))
    _deleted_by_controller(harness)


def _deleted_by_controller(harness: Harness) -> None:
    """A suspension: the Job controller first releases the pod, and the Job keeps a condition."""
    resumed = {"type": "Suspended", "status": "False", "reason": "JobResumed"}
    harness.server.change_job(
        harness.name(), lambda job: job["status"].setdefault("conditions", []).append(resumed)
    )
    tracking = "batch.kubernetes.io/job-tracking"
    harness.server.change_pod(
        harness.name(), lambda pod: pod["metadata"]["finalizers"].remove(tracking)
    )
    [pod] = harness.server.pods(harness.name())
    harness.api.delete(harness.api.pods_path(pod["metadata"]["name"]), {"gracePeriodSeconds": 0})


def test_a_job_that_is_resumed_while_its_pod_ends_has_not_ended(harness: Harness) -> None:
    """Between the end of the pod and the next pod, nothing executes, but nothing has ended either."""
    harness.deploy()
    harness.server.controllers.counts_ends = False
    _deleted_by_controller(harness)
    harness.server.controllers.end_pod(harness.server.pod(harness.name()), 143)
    assert (harness.see().phase, harness.see().reason) == (
        Phase.WAITING,
        "Waiting for the Job's pod",
    )
    harness.server.change_job(harness.name(), lambda job: job["spec"].update(suspend=True))
    seen = harness.see()
    assert seen.end is not None
    assert (seen.end.message, seen.end.disruption) == (
        "its Job was suspended by somebody else",
        "interrupted",
    )


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "resumed"])
def test_a_pod_that_a_queue_took_back_before_it_had_a_node_goes_and_its_task_waits(
    harness: Harness, suspended: bool
) -> None:
    harness.deploy(started=False)
    _taken_back(harness, suspended=suspended)
    assert harness.see().phase is Phase.WAITING
    assert harness.kept() == []
    assert harness.server.pods(harness.name()) == []
    assert harness.see().phase is Phase.WAITING
    assert _deletes(harness, "jobs") == [], "the Job goes on"


def test_a_stop_of_a_task_whose_pod_a_queue_took_back_is_ours(harness: Harness) -> None:
    harness.deploy(started=False)
    _taken_back(harness, suspended=True)
    harness.cluster.stop(run_ref(RUN), harness.ref())
    assert harness.see(stopping=True).phase is not Phase.ENDED, "nothing ran, so the pod is no end"
    assert (harness.kept(), harness.see(stopping=True).phase) == ([], Phase.GONE)


def test_a_pod_without_a_node_that_a_person_deleted_is_kept_as_an_end(harness: Harness) -> None:
    harness.deploy(started=False)
    [pod] = harness.server.pods(harness.name())
    harness.api.delete(harness.api.pods_path(pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    assert harness.see().phase is Phase.ENDED
    assert harness.kept() == [(RUN, 0, 1)]


def test_another_object_under_the_name_is_not_let_go(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0)
    harness.finalizers.release(run_ref(RUN), [replace(harness.ref(), uid="another")])
    assert labels.FINALIZER in _finalizers(harness)


def test_the_end_of_another_row_is_not_let_go(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0)
    harness.finalizers.release(run_ref(RUN), [replace(harness.without_uid(), task_id=999999)])
    assert labels.FINALIZER in _finalizers(harness)
    harness.finalizers.release(run_ref(RUN), [harness.without_uid()])
    assert labels.FINALIZER not in _finalizers(harness)


def test_a_pod_without_its_run_is_read_and_let_go(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_prints(harness.name(), b"line\n")
    harness.server.change_pod(harness.name(), lambda pod: pod["metadata"]["labels"].pop(labels.RUN))
    harness.server.pod_ends(harness.name(), 0)
    [details] = harness.cluster.details(run_ref(RUN), [harness.ref()])
    assert details.log_tail == "line\n"
    assert harness.kept() == [(RUN, 0, 1)]
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert labels.FINALIZER not in _finalizers(harness)
    assert harness.kept() == []
    harness.forget_calls()
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert harness.calls("PATCH") == 0, "once is enough"


@pytest.mark.parametrize(
    ("label", "value"),
    [(labels.MANAGED_BY, None), (labels.MANAGED_BY, "helm"), (labels.RUN, "helm"), (labels.RUN_UID, "helm"),
     (labels.TASK_ID, None), (labels.ATTEMPT, "helm")],
)  # fmt: skip
def test_a_pod_whose_labels_were_edited_is_let_go(
    harness: Harness, label: str, value: str | None
) -> None:
    """It is recognized by its finalizer and the uid of its Job. If it were held, its Job and
    namespace would be held as well.
    """
    harness.deploy(2)

    def change(found: Any) -> None:
        told = found["metadata"]["labels"]
        found["metadata"]["labels"] = {
            key: it for key, it in {**told, label: value}.items() if it is not None
        }

    harness.server.change_pod(harness.name(), change)
    harness.server.change_job(harness.name(), change)
    harness.server.pod_ends(harness.name(), 0)
    assert harness.see().phase is Phase.ENDED
    [kept] = harness.finalizers.kept()
    assert (kept.key, kept.uid) == ((RUN, 0, 1), harness.uids[0])
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert labels.FINALIZER not in _finalizers(harness)
    assert labels.FINALIZER in _finalizers(harness, 1)
    assert harness.kept() == []


def test_what_no_list_of_ours_has_is_looked_for_seldom_and_holds_nothing_up(
    harness: Harness,
) -> None:
    harness.deploy(2)
    harness.server.change_pod(
        harness.name(), lambda pod: pod["metadata"]["labels"].pop(labels.MANAGED_BY)
    )
    for index in range(2):
        harness.server.pod_ends(harness.name(index), 0)
    harness.forget_calls()
    for _ in range(5):
        assert harness.kept() == [(RUN, 0, 1), (RUN, 1, 1)]
    assert harness.calls("GET", r"/pods\?.*managed-by%21%3D") == 1
    harness.server.faults.add("GET", r"/pods\?.*managed-by%21%3D", Answer(500), times=None)
    another = Finalizers(harness.api, harness.now)
    assert [end.key for end in another.kept()] == [(RUN, 1, 1)]


@pytest.mark.parametrize(
    "name", ["crawl-7-0", "crawl-7-0-01", "other-7-0-1", "crawl-7-0-x", f"crawl-{10**30}-0-1", ""]
)
def test_a_pod_that_says_neither_its_task_nor_its_job_is_left(harness: Harness, name: str) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0)

    def change(pod: Any) -> None:
        pod["metadata"]["labels"].pop(labels.RUN)
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = name

    harness.server.change_pod(harness.name(), change)
    assert harness.kept() == []


def test_a_right_that_went_first_is_an_error(harness: Harness) -> None:
    harness.deploy()
    harness.server.pod_ends(harness.name(), 0)
    harness.server.deny("patch", "pods")
    with pytest.raises(RequestRefused, match="needs permission to patch pods"):
        harness.finalizers.release(run_ref(RUN), [harness.ref()])
    harness.server.allow("patch", "pods")
    harness.finalizers.release(run_ref(RUN), [harness.ref()])
    assert harness.kept() == []


def test_the_life_of_a_task_is_five_calls(harness: Harness) -> None:
    """This does not count what all tasks of a run share: the lists for polls, details and releases."""
    harness.deploy(10)
    refs = [harness.ref(index) for index in range(10)]
    list(harness.cluster.details(run_ref(RUN), refs))
    for index in range(10):
        harness.server.pod_ends(harness.name(index), 0)
    list(harness.cluster.details(run_ref(RUN), refs))
    assert len(harness.finalizers.kept()) == 10
    harness.finalizers.release(run_ref(RUN), refs)
    shared = harness.calls("GET", r"/(jobs|pods)\?")
    assert harness.calls() - shared == 50
    assert shared <= 9


def test_the_details_of_many_take_one_list_and_are_read_in_turns(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 10,000 pods takes seconds, and that many logs are 160 MB."""
    monkeypatch.setattr("crawler_lifecycle.clusters.kubernetes.polls.details.LOGS_A_TURN", 3)
    harness.deploy(10)
    for index in range(10):
        harness.server.pod_prints(harness.name(index), b"done\n")
        harness.server.pod_ends(harness.name(index), 0)
    lists = harness.calls("GET", r"/pods\?")
    found = iter(harness.cluster.details(run_ref(RUN), [harness.ref(index) for index in range(10)]))
    next(found)
    assert harness.calls("GET", "/log") == 3
    assert len(list(found)) == 9
    assert harness.calls("GET", r"/pods\?") == lists + 1


def test_a_placeholder_is_no_time_of_an_end_for_anybody(harness: Harness) -> None:
    """The kubelet writes the start of the epoch when it knows no time: nothing has waited since
    1970.
    """
    harness.deploy()
    pod = harness.server.pod_ends(harness.name(), 137)

    def forget(found: dict[str, Any]) -> None:
        for status in found["status"]["containerStatuses"]:
            status["state"]["terminated"]["finishedAt"] = "1970-01-01T00:00:00Z"

    harness.server.store.update(PODS, (harness.server.namespace, pod["metadata"]["name"]), forget)
    [kept], [held] = harness.finalizers.kept(), finalizers.list_held(harness.api)
    assert (kept.ended_at, kept.ran) == (None, False)
    assert finalizers.waits(held)
