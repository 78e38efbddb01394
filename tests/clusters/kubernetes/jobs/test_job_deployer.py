"""Creating Jobs, each at most once: every response that a server can send, and every response that
can be lost.
"""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import (
    ApiError,
    CredentialsRejected,
    RequestRefused,
    TooManyRequests,
)
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import PATIENCE, THREADS
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired
from crawler_lifecycle.ports.runs import QueuedTask
from tests.support.job_cases import crawler
from tests.support.kube_api import (
    Answer,
    Cut,
    LostAnswer,
    Mutate,
    Reset,
    Silence,
    Truncated,
    throttled,
)
from tests.support.kube_api.store import JOBS, KINDS, NAMESPACES

if TYPE_CHECKING:
    from tests.clusters.kubernetes.jobs.conftest import Fixture
else:
    Fixture = Any

SECRETS = next(kind for kind in KINDS if kind.plural == "secrets")
JOBS_POST = r"/jobs(\?|$)"
SECRETS_POST = r"/secrets(\?|$)"


def _tokens(*_: object) -> dict[str, str]:
    return {"CRAWL_GATEWAY_URL": "http://gateway.example", "CRAWL_TOKEN": "task.7.secret"}


def _env(job: dict[str, Any]) -> dict[str, Any]:
    [container] = job["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


# --- created, found -------------------------------------------------------------------------------


def test_a_page_has_an_answer_for_each_task_in_its_order(fixture: Fixture) -> None:
    fixture.deploy(3)
    answers = fixture.deploy(40)
    assert [answer.index for answer in answers] == list(range(40))
    assert [answer.state for answer in answers] == ["existing"] * 3 + ["created"] * 37
    assert len({answer.uid for answer in answers}) == 40


def test_a_page_that_exists_takes_one_list_and_nothing_for_each_task(fixture: Fixture) -> None:
    by = fixture.deployer(task_environment=_tokens)
    first = fixture.deploy(30, by=by)
    for job in fixture.jobs[:29]:
        fixture.server.pod_starts(job)
    before = fixture.server.count()
    again = fixture.deploy(30, by=by)
    assert [answer.uid for answer in again] == [answer.uid for answer in first]
    assert {answer.state for answer in again} == {"existing"}
    assert fixture.server.count() - before == 2, (
        "one list, and the Secret of the one that has not started"
    )


def test_without_the_right_to_list_a_page_is_found_by_name(fixture: Fixture) -> None:
    first = fixture.deploy(5)
    fixture.server.deny("list", "jobs")
    assert [answer.uid for answer in fixture.deploy(5)] == [answer.uid for answer in first]


def test_of_a_page_each_task_is_judged_by_itself(fixture: Fixture) -> None:
    fixture.deploy(4)

    def settle(job: Any) -> None:
        job["metadata"]["labels"][labels.SETTLED] = "1"

    fixture.server.store.update(JOBS, ("crawls", "crawl-7-1-1"), settle)
    fixture.server.store.begin_deletion(JOBS, ("crawls", "crawl-7-2-1"), 0, "foregroundDeletion")
    assert [answer.state for answer in fixture.deploy(5)] == [
        "existing",
        "refused",
        "existing",
        "existing",
        "created",
    ]


@pytest.mark.parametrize("may_list", [True, False])
def test_of_a_call_with_tries_of_several_attempts_each_finds_its_own_job(
    fixture: Fixture, may_list: bool
) -> None:
    """Tries of one index are included: a lost call created the first try, and another call the
    second.
    """
    page = [QueuedTask(70 + n, n, {}, attempt=1 + n % 3) for n in range(6)]
    first = fixture.deploy(tasks=page[:4])
    others = fixture.deploy(
        tasks=[replace(task, task_id=task.task_id + 10, attempt=task.attempt + 1) for task in page]
    )
    if not may_list:
        fixture.server.deny("list", "jobs")
    again = fixture.deploy(tasks=page)
    assert [answer.state for answer in again] == ["existing"] * 4 + ["created"] * 2
    assert [answer.uid for answer in again[:4]] == [answer.uid for answer in first]
    assert len({answer.uid for answer in (*again, *others)}) == len(fixture.jobs) == 12


def test_a_try_is_created_while_the_job_of_the_one_before_is_being_deleted(
    fixture: Fixture,
) -> None:
    fixture.one()
    fixture.server.store.begin_deletion(JOBS, ("crawls", "crawl-7-0-1"), 0, "foregroundDeletion")
    answer = fixture.one(tasks=[QueuedTask(80, 0, {}, attempt=2, retry=1)])
    assert (answer.state, answer.name) == ("created", "crawl-7-0-2")


@pytest.mark.parametrize(
    ("spec", "status", "state"),
    [
        ({"suspend": True}, {}, "deferred"),
        ({}, {"conditions": [{"type": "Suspended", "status": "False"}]}, "deferred"),
        ({"suspend": True, "parallelism": 0}, {}, "created"),
        ({"suspend": True, "parallelism": 0}, {"terminating": 1}, "deferred"),
        (
            {},
            {
                "conditions": [
                    {"type": kind, "status": "True"} for kind in ("Suspended", "FailureTarget")
                ]
            },
            "created",
        ),
        ({}, {"active": 1}, "created"),
    ],
    ids=[
        "suspended",
        "resumed",
        "without pods",
        "whose second pod leaves",
        "failing",
        "never suspended",
    ],
)
def test_no_try_begins_beside_a_job_that_a_queue_may_resume(
    fixture: Fixture, spec: dict[str, Any], status: dict[str, Any], state: str
) -> None:
    """The end of its pod is on record, but the release of the pod may not have arrived."""
    fixture.deploy(2)
    fixture.server.store.update(
        JOBS,
        ("crawls", "crawl-7-0-1"),
        lambda job: (
            job["spec"].update(spec),
            job.setdefault("status", {}).update({"active": 0} | status),
        ),
    )
    page = [QueuedTask(80 + n, n, {}, attempt=2) for n in range(2)]
    assert [answer.state for answer in fixture.deploy(tasks=page)] == [state, "created"]
    answer = fixture.one(tasks=page[:1])
    assert answer.state == {"created": "existing"}.get(state, state)
    assert (
        answer.reason is None
    ) or "the Job crawl-7-0-1 of the previous try was suspended" in answer.reason
    fixture.server.store.update(JOBS, ("crawls", "crawl-7-0-1"), lambda job: job["metadata"]["labels"].update(
        {labels.RUN_UID: "f" * 32}))  # fmt: skip
    assert fixture.one(tasks=page[:1]).state in ("created", "existing"), (
        "the Job of another database holds up nothing"
    )


def test_a_page_whose_list_fails_is_an_outage(fixture: Fixture) -> None:
    fixture.server.faults.add("GET", JOBS_POST, Answer(500))
    with pytest.raises(ClusterUnavailable):
        fixture.deploy(3)
    assert not fixture.jobs


def test_replicas_that_race_make_one_job_each(fixture: Fixture) -> None:
    replicas, barrier = [fixture.deployer() for _ in range(4)], threading.Barrier(4)

    def call(n: int) -> list[Any]:
        barrier.wait(60)
        return fixture.deploy(20, by=replicas[n])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(call, range(4)))
    assert len(fixture.jobs) == 20
    for same in zip(*answers, strict=True):
        assert len({answer.uid for answer in same}) == 1
        assert sorted(answer.state for answer in same) == [
            "created",
            "existing",
            "existing",
            "existing",
        ]


def test_wrong_arguments_are_refused_without_trying_to_create(fixture: Fixture) -> None:
    answer = fixture.one(args={"nonsense": "1"})
    assert (answer.state, answer.uid) == ("refused", None)
    assert "nonsense" in (answer.reason or "")
    assert [request.method for request in fixture.server.requests] == ["GET"], (
        "an earlier try may have created it"
    )


# --- an answer that was lost ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        LostAnswer(),
        Reset(after_effect=True),
        Silence(after_effect=True),
        Cut(40),
        Truncated(30),
        Silence(),
        Reset(),
        Answer(503),
    ],
    ids=repr,
)
def test_whether_it_took_effect_or_not_there_is_one_job(
    fixture: Fixture, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(fault, Silence):
        fixture.without_answer(fault, monkeypatch)
    else:
        fixture.server.faults.add("POST", JOBS_POST, fault)
    answer = fixture.one()
    assert answer.uid == fixture.server.job("crawl-7-0-1")["metadata"]["uid"]
    assert answer.state in ("created", "existing")
    methods = [request.method for request in fixture.server.requests]
    assert methods[:2] == ["POST", "GET"], "the first poll is cheaper than a second creation"
    assert methods.count("POST") == (1 if answer.state == "existing" else 2)


QUOTA = Answer(
    403,
    'jobs.batch "crawl-7-0-1" is forbidden: exceeded quota: crawls, used: count/jobs.batch=1',
    "Forbidden",
)
POLICY = Answer(
    403, 'admission webhook "policy.example" denied the request: no owner label', "Forbidden"
)


def _lost(fixture: Fixture) -> str:
    """A call whose Job exists and executes, although nobody received a response. Returns its uid."""
    fixture.server.faults.add("POST", JOBS_POST, LostAnswer())
    fixture.server.faults.add("GET", r"/jobs/", Answer(503), times=None)
    with pytest.raises(ClusterUnavailable):
        fixture.one()
    fixture.server.faults.clear()
    fixture.server.pod_starts("crawl-7-0-1")
    return str(fixture.server.job("crawl-7-0-1")["metadata"]["uid"])


@pytest.mark.parametrize(
    "refusal", [QUOTA, POLICY, Answer(422, "invalid"), Answer(413, "too large")], ids=repr
)
def test_a_refusal_does_not_say_that_nothing_is_there(fixture: Fixture, refusal: Answer) -> None:
    uid = _lost(fixture)
    fixture.server.faults.add("POST", JOBS_POST, refusal)
    answer = fixture.one()
    assert (answer.state, answer.uid, answer.reason) == ("existing", uid, None)


def test_a_quota_that_our_own_job_uses_up_is_no_reason_to_wait(fixture: Fixture) -> None:
    fixture.server.routes.jobs_quota = 1
    uid = _lost(fixture)
    assert (fixture.one().state, fixture.one().uid) == ("existing", uid)
    assert [answer.state for answer in fixture.deploy(2)] == ["existing", "deferred"]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_catalogue_that_changed_for_the_worse_disowns_no_job(
    fixture: Fixture, tasks: int
) -> None:
    uid = _lost(fixture)
    fixture.crawler = replace(fixture.crawler, image="no image")
    first, *others = fixture.deploy(tasks)
    assert (first.state, first.uid) == ("existing", uid)
    assert {answer.state for answer in others} <= {"refused"}


@pytest.mark.parametrize("refusal", [QUOTA, POLICY, Answer(422, "invalid")], ids=repr)
def test_a_refusal_after_a_try_without_an_answer_is_that_trouble(
    fixture: Fixture, refusal: Answer
) -> None:
    fixture.server.faults.add("POST", JOBS_POST, Answer(504))
    fixture.server.faults.add("POST", JOBS_POST, refusal)
    with pytest.raises(ApiError) as raised:
        fixture.one()
    assert raised.value.status == 504, "the first creation may hold the quota, and be stored yet"
    assert fixture.one().state == "created"


def test_the_tries_within_a_call_have_an_end(fixture: Fixture) -> None:
    fixture.server.faults.add("POST", JOBS_POST, Answer(500), times=None)
    with pytest.raises(ApiError) as raised:
        fixture.one()
    assert raised.value.status == 500
    assert fixture.server.count("POST") == 3


# --- another object under the name ----------------------------------------------------------------

OF_A_TASK = [labels.RUN, labels.RUN_UID, labels.TASK_ID, labels.TASK, labels.MANAGED_BY]


@pytest.mark.parametrize(
    "edited",
    [dict.fromkeys(OF_A_TASK, "9"), {}, *({label: "9"} for label in OF_A_TASK)],
    ids=["all changed", "all removed", *OF_A_TASK],
)
def test_a_job_whose_labels_were_edited_is_ours_all_the_same(
    fixture: Fixture, edited: dict[str, str]
) -> None:
    """Its hash identifies run, task and request. Refusing it would end the task while its Job
    executes.
    """
    uid = _lost(fixture)

    def change(job: Any) -> None:
        job["metadata"]["labels"] = {**job["metadata"]["labels"], **edited} if edited else {}

    fixture.server.store.update(JOBS, ("crawls", "crawl-7-0-1"), change)
    answer = fixture.one()
    assert (answer.state, answer.uid, answer.reason) == ("existing", uid, None)
    assert fixture.deploy(2)[0].uid == uid


@pytest.mark.parametrize(
    "label", [labels.TASK_ID, labels.CRAWLER, labels.TRIGGER, labels.MANAGED_BY]
)
def test_a_job_with_other_labels_and_another_hash_is_not_ours(fixture: Fixture, label: str) -> None:
    fixture.one()

    def change(job: Any) -> None:
        job["metadata"]["labels"][label] = "9"
        del job["metadata"]["annotations"][labels.SPEC_HASH]

    fixture.server.store.update(JOBS, ("crawls", "crawl-7-0-1"), change)
    answer = fixture.one()
    assert (answer.state, answer.uid) == ("refused", None)
    assert label in (answer.reason or "")
    assert labels.SPEC_HASH in (answer.reason or "")


def test_a_job_that_a_person_made_under_the_name_is_not_ours(fixture: Fixture) -> None:
    spec = {
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
        }
    }
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "crawl-7-0-1"},
        "spec": spec,
    }
    fixture.api.post(fixture.api.jobs_path(), made)
    assert fixture.one().state == "refused"


def test_a_job_whose_end_is_on_record_is_of_another_database(fixture: Fixture) -> None:
    fixture.one()
    fixture.server.store.update(
        JOBS,
        ("crawls", "crawl-7-0-1"),
        lambda job: job["metadata"]["labels"].update({labels.SETTLED: "1"}),
    )
    answer = fixture.one()
    assert (answer.state, answer.uid) == ("refused", None)
    assert "another database" in (answer.reason or "")


def test_one_of_ours_that_somebody_deletes_is_there_and_its_attempt_is_not_made_again(
    fixture: Fixture,
) -> None:
    uid = _lost(fixture)
    fixture.server.store.begin_deletion(JOBS, ("crawls", "crawl-7-0-1"), 0, "foregroundDeletion")
    answer = fixture.one()
    assert (answer.state, answer.uid, answer.reason) == ("existing", uid, None)
    assert fixture.deploy(2)[0].uid == uid


@pytest.mark.parametrize(
    ("where", "foreign"),
    [("annotations", {labels.SPEC_HASH: "9"}), ("labels", {labels.SETTLED: "1"})],
    ids=["of another task", "settled"],
)
def test_a_former_one_that_is_being_deleted_is_waited_for(
    fixture: Fixture, where: str, foreign: dict[str, str]
) -> None:
    fixture.one()
    fixture.server.store.update(
        JOBS, ("crawls", "crawl-7-0-1"), lambda job: job["metadata"][where].update(foreign)
    )
    fixture.server.store.begin_deletion(JOBS, ("crawls", "crawl-7-0-1"), 0, "foregroundDeletion")
    answer = fixture.one()
    assert (answer.state, answer.uid) == ("deferred", None)
    assert "still being deleted" in (answer.reason or "")
    fixture.server.store.update(
        JOBS, ("crawls", "crawl-7-0-1"), lambda job: job["metadata"].update(finalizers=[])
    )
    assert fixture.one().state == "created"


# --- another controller ---------------------------------------------------------------------------

MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def _given_away(fixture: Fixture) -> None:
    """From now on, the server assigns every Job to another controller, as MultiKueue's webhook
    does.
    """
    fixture.server.faults.add(
        "POST", JOBS_POST, Mutate(lambda job: job["spec"].update(managedBy=MULTIKUEUE)), times=None
    )


def test_a_job_that_its_queue_would_give_away_is_refused_by_name_and_not_made(
    fixture: Fixture,
) -> None:
    fixture.crawler = crawler(kubernetes=PodOptions(queue="far"))
    _given_away(fixture)
    for answer in (fixture.one(), *fixture.deploy(3)):
        assert (answer.state, answer.uid) == ("refused", None)
        assert "queue far" in (answer.reason or "")
        assert MULTIKUEUE in (answer.reason or "")
    assert not fixture.jobs


def test_a_job_that_was_made_before_its_queue_gave_jobs_away_is_found(fixture: Fixture) -> None:
    uid = _lost(fixture)
    fixture.crawler = crawler(kubernetes=PodOptions(queue="far"))
    _given_away(fixture)
    assert (fixture.one().state, fixture.one().uid) == ("existing", uid)


@pytest.mark.parametrize("by", [None, "kubernetes.io/job-controller"])
def test_a_queue_that_keeps_its_jobs_is_asked_once_for_each(
    fixture: Fixture, by: str | None
) -> None:
    fixture.crawler = crawler(kubernetes=PodOptions(queue="near"))
    fixture.server.faults.add(
        "POST", JOBS_POST, Mutate(lambda job: job["spec"].update(managedBy=by)), times=None
    )
    assert fixture.one().state == "created"
    assert fixture.server.count("POST", JOBS_POST) == 2
    fixture.crawler = crawler()
    assert fixture.one(tasks=[QueuedTask(71, 1, {})]).state == "created"
    assert fixture.server.count("POST", JOBS_POST) == 3, "without a queue nobody is asked"


# --- what the server refuses ----------------------------------------------------------------------


def test_a_quota_that_is_used_up_defers_in_the_servers_words(fixture: Fixture) -> None:
    fixture.server.routes.jobs_quota = 2
    answers = fixture.deploy(5)
    assert sorted(answer.state for answer in answers) == ["created"] * 2 + ["deferred"] * 3
    told = next(answer.reason for answer in answers if answer.state == "deferred")
    assert "exceeded quota: crawls, requested: count/jobs.batch=1, used: count/jobs.batch=2" in (
        told or ""
    )
    fixture.server.routes.jobs_quota = None
    assert (
        sorted(answer.state for answer in fixture.deploy(5)) == ["created"] * 3 + ["existing"] * 2
    )


def test_a_quota_that_changed_meanwhile_is_no_job_of_that_name(fixture: Fixture) -> None:
    why = 'Operation cannot be fulfilled on resourcequotas "crawls": the object has been modified'
    fixture.server.faults.add("POST", JOBS_POST, Answer(409, why, "Conflict"))
    with pytest.raises(ApiError):
        fixture.one()
    assert fixture.one().state == "created"


def test_a_namespace_that_is_being_deleted_defers_and_says_so(fixture: Fixture) -> None:
    fixture.server.store.update(
        NAMESPACES, ("", "crawls"), lambda found: found["status"].update(phase="Terminating")
    )
    answer = fixture.one()
    assert answer.state == "deferred"
    assert "the namespace crawls is being deleted" in (answer.reason or "")


def test_our_own_missing_right_fails_no_run(fixture: Fixture) -> None:
    fixture.server.deny("create", "jobs")
    with pytest.raises(RequestRefused, match="needs permission to create jobs in namespace crawls"):
        fixture.one()
    fixture.server.allow("create", "jobs")
    fixture.server.deny("get", "jobs")
    assert fixture.one().state == "created"
    with pytest.raises(RequestRefused, match="needs permission to get jobs"):
        fixture.one()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Answer(422, 'Job.batch "x" is invalid: spec.template.spec.volumes[2]: Required'),
            "spec.template.spec.volumes",
        ),
        (
            Answer(
                403,
                'admission webhook "policy.example" denied the request: no owner label',
                "Forbidden",
            ),
            "no owner",
        ),
        (
            Answer(422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: too big"),
            "too big",
        ),
        (Answer(413, "Request entity too large: limit is 3145728"), "3145728"),
        (
            Answer(400, 'Job in version "v1" cannot be handled as a Job: unknown field "spec.x"'),
            "spec.x",
        ),
    ],
)
def test_a_manifest_that_will_never_be_taken_is_refused_in_the_servers_words(
    fixture: Fixture, answer: Answer, words: str
) -> None:
    fixture.server.faults.add("POST", JOBS_POST, answer)
    told = fixture.one()
    assert (told.state, told.uid) == ("refused", None)
    assert words in (told.reason or "")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(401), CredentialsRejected),
        (throttled("3"), TooManyRequests),
        (throttled(None), TooManyRequests),
        (Answer(404, 'namespaces "crawls" not found'), ApiError),
        (Answer(403, "something that nobody has heard of", "Forbidden"), RequestRefused),
        (Answer(400, "<html>a proxy</html>", "-"), RequestRefused),
    ],
)
def test_what_says_nothing_about_the_task_is_an_outage(
    fixture: Fixture, fault: Answer, kind: type[ApiError]
) -> None:
    fixture.server.faults.add("POST", JOBS_POST, fault, times=None)
    with pytest.raises(kind) as raised:
        fixture.one()
    assert isinstance(raised.value, ClusterUnavailable)
    assert raised.value.retry_after_s == (3 if fault.headers.get("Retry-After") == "3" else None)
    assert not fixture.jobs


# --- place ----------------------------------------------------------------------------------------


def test_nothing_is_created_in_another_namespace_than_the_callers(fixture: Fixture) -> None:
    """Namespaces are compared by uid: one of the same name on another cluster is a different one."""
    place = KubernetesCluster(fixture.api).place()
    assert place is not None
    for other in (place.replace("crawls/", "elsewhere/"), "crawls/another/-", "somewhere"):
        with pytest.raises(
            ClusterUnavailable, match="this service creates them in crawls"
        ) as raised:
            fixture.one(place=other)
        assert "LIFECYCLE_CLUSTER__NAMESPACE" in str(raised.value)
        assert not fixture.jobs
    assert fixture.one(place=place).state == "created"


def test_without_the_right_to_read_the_namespace_its_name_decides(fixture: Fixture) -> None:
    fixture.server.deny("get", "namespaces")
    with pytest.raises(ClusterUnavailable, match="this service creates them in crawls"):
        fixture.one(place="elsewhere/another/-")
    assert fixture.one(place="crawls/another/-").state == "created"


# --- time -----------------------------------------------------------------------------------------


def test_no_creation_begins_after_the_expiry_in_mid_page(fixture: Fixture) -> None:
    seconds = itertools.count(1)

    def clock() -> Any:
        return fixture.now + timedelta(seconds=next(seconds))

    with pytest.raises(DeploymentExpired):
        fixture.deploy(
            60, by=fixture.deployer(clock=clock), expires_at=fixture.now + timedelta(seconds=31)
        )
    assert len(fixture.jobs) == 30
    assert len([answer for answer in fixture.deploy(60) if answer.state == "existing"]) == 30


def test_the_server_is_told_until_when_it_may_create(fixture: Fixture) -> None:
    fixture.one()
    [request] = fixture.server.requests
    assert request.query["timeout"] == "25.000s"


def _slow_credentials(fixture: Fixture, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Credentials take time, as with a plugin that calls another service."""
    current = fixture.api._wire._access.current

    def slow() -> Any:
        fixture.now += timedelta(seconds=seconds)
        return current()

    monkeypatch.setattr(fixture.api._wire._access, "current", slow)


def test_a_call_that_expires_while_credentials_are_fetched_is_not_sent(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow_credentials(fixture, monkeypatch, 26)
    with pytest.raises(DeploymentExpired):
        fixture.one()
    assert not fixture.jobs
    assert [request.method for request in fixture.server.requests] == ["GET"]


def test_what_the_credentials_took_is_not_the_servers_to_use(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow_credentials(fixture, monkeypatch, 20)
    fixture.one()
    [request] = fixture.server.requests
    assert request.query["timeout"] == "5.000s"


def test_a_call_that_expires_between_a_401_and_its_second_sending_is_not_sent_again(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow_credentials(fixture, monkeypatch, 15)
    monkeypatch.setattr(fixture.api._wire._access, "renew", lambda *_: True)
    fixture.server.faults.add("POST", JOBS_POST, Answer(401))
    with pytest.raises(DeploymentExpired):
        fixture.one()
    assert not fixture.jobs
    assert [request.method for request in fixture.server.requests] == ["POST", "GET"]


# --- a page in which something fails --------------------------------------------------------------


def test_one_failed_answer_does_not_keep_the_others_from_being_created(fixture: Fixture) -> None:
    fixture.server.faults.add(
        "POST", JOBS_POST, Answer(500), times=3
    )  # one task may have all three
    fixture.server.faults.add("GET", r"/jobs/crawl-7-\d+-1", Answer(500), times=2)
    with pytest.raises(ClusterUnavailable):
        fixture.deploy(30)
    assert len(fixture.jobs) >= 28
    assert {answer.state for answer in fixture.deploy(30)} == {"created", "existing"}
    assert len(fixture.jobs) == 30


def test_a_page_that_nobody_lets_us_create_is_given_up_soon(fixture: Fixture) -> None:
    fixture.server.deny("create", "jobs")
    with pytest.raises(RequestRefused):
        fixture.deploy(300)
    assert fixture.server.count() <= 2 * THREADS


def test_a_server_that_only_fails_is_given_up_soon(fixture: Fixture) -> None:
    fixture.server.faults.add("*", r"/jobs(/crawl|\?field)", Answer(500), times=None)
    with pytest.raises(ApiError):
        fixture.deploy(300)
    assert fixture.server.count("POST") <= 2 * (THREADS + PATIENCE)


# --- what only the task may know ------------------------------------------------------------------


def test_a_token_is_in_a_secret_that_goes_with_the_job_and_nowhere_else(fixture: Fixture) -> None:
    answer = fixture.one(by=fixture.deployer(task_environment=_tokens))
    job = fixture.server.job("crawl-7-0-1")
    secret = fixture.server.store.get(SECRETS, ("crawls", "crawl-7-0-1"))
    assert secret["stringData"] == {"CRAWL_TOKEN": "task.7.secret"}
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "crawl-7-0-1", answer.uid)
    assert "task.7.secret" not in json.dumps(job)
    assert _env(job)["CRAWL_TOKEN"] == {
        "secretKeyRef": {"name": "crawl-7-0-1", "key": "CRAWL_TOKEN"}
    }
    assert _env(job)["CRAWL_GATEWAY_URL"] == "http://gateway.example"


def test_a_service_that_dies_between_job_and_secret_is_made_good_by_the_next_call(
    fixture: Fixture,
) -> None:
    by = fixture.deployer(task_environment=_tokens)
    fixture.server.faults.add("POST", SECRETS_POST, Answer(500))
    with pytest.raises(ClusterUnavailable):
        fixture.one(by=by)
    assert fixture.jobs == ["crawl-7-0-1"]
    answer = fixture.one(by=by)
    assert answer.state == "existing"
    [secret] = fixture.server.store.find(SECRETS)
    assert secret["metadata"]["ownerReferences"][0]["uid"] == answer.uid
    assert fixture.one(by=by).state == "existing"


def test_a_former_jobs_secret_is_not_taken_for_that_of_a_new_one(fixture: Fixture) -> None:
    by = fixture.deployer(task_environment=_tokens)
    former = fixture.one(by=by)
    # In the background: its dependents are deleted later.
    fixture.server.store.remove(JOBS, ("crawls", "crawl-7-0-1"))
    with pytest.raises(ClusterUnavailable, match="a Secret of its name exists"):
        fixture.one(by=by)
    fixture.server.store.remove(SECRETS, ("crawls", "crawl-7-0-1"))
    answer = fixture.one(by=by)
    assert answer.uid != former.uid
    [secret] = fixture.server.store.find(SECRETS)
    assert secret["metadata"]["ownerReferences"][0]["uid"] == answer.uid


def test_of_a_page_one_former_secret_keeps_no_other_task_back(fixture: Fixture) -> None:
    by = fixture.deployer(task_environment=_tokens)
    fixture.one(by=by)
    fixture.server.store.remove(JOBS, ("crawls", "crawl-7-0-1"))
    with pytest.raises(ClusterUnavailable):
        fixture.deploy(40, by=by)
    assert len(fixture.jobs) == 40


def test_the_right_to_create_secrets_is_all_it_takes(fixture: Fixture) -> None:
    for verb in ("get", "list", "watch", "patch", "update", "delete"):
        fixture.server.deny(verb, "secrets")
    by = fixture.deployer(task_environment=_tokens)
    assert [fixture.one(by=by).state for _ in range(2)] == ["created", "existing"]
    fixture.server.deny("create", "secrets")
    with pytest.raises(
        RequestRefused, match="needs permission to create secrets in namespace crawls"
    ):
        fixture.one(by=by)


def test_nothing_is_given_to_a_job_that_is_not_ours(fixture: Fixture) -> None:
    fixture.one()
    answer = fixture.one(by=fixture.deployer(task_environment=_tokens), settings={"A": "1"})
    assert answer.state == "refused"
    assert not fixture.server.store.find(SECRETS)


def test_a_crawlers_own_secret_is_never_read(fixture: Fixture) -> None:
    fixture.crawler = crawler(secrets={"KEY": "secret:shops/key"})
    fixture.one()
    assert fixture.server.count("*", "secrets") == 0
