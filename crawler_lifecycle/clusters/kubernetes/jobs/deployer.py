"""Creates the Jobs of tasks, each at most once, also with concurrent calls and lost answers (docs/kubernetes.md)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crawler_lifecycle.clusters.kind import TaskEnvironment
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, Conflict, Refused, TooLate
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, decode
from crawler_lifecycle.clusters.kubernetes.looks import namespace_identity
from crawler_lifecycle.clusters.kubernetes.looks.listing import find_job, run_uid_of
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired, InvalidRequest, LifecycleError
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import Deployed, Deployment, QueuedTask
from crawler_lifecycle.settings import ClusterSettings

from .manifest import identity_of, job_for, secret_for, spec_hash

logger = logging.getLogger(__name__)

#: Parallel calls to the API, for pages of tasks. A page of 500 has 25 s.
THREADS = 16
#: Tries of one call in which the name is taken and free again, or an answer is lost.
TRIES = 3
#: Number of failed tasks after which the rest of a page is not begun; their errors may concern these tasks only.
PATIENCE = 8
#: The variables of the task's environment that are no secrets.
PUBLIC = frozenset({"CRAWL_GATEWAY_URL", "CRAWL_UPLOAD_URL"})

_DENIED = re.compile(r"denied (the )?request")


@dataclass(frozen=True, slots=True)
class _Ours:
    """The fields that distinguish a task's Job from any other Job of its name, whatever the catalogue now says."""

    run: RunRef
    name: str
    labels: Mapping[str, str]
    spec_hash: str


class _Answered(Exception):
    """The server's answer is the answer for this task."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


class KubernetesDeployer:
    """Puts tasks onto a cluster as Jobs of one namespace. Implements ``Deployer``; thread-safe.

    ``task_environment`` returns variables that only one task may know: they go into a Secret of the task and never into
    its Job, which many more people may read.
    """

    kind = "kubernetes"

    def __init__(
        self,
        api: Api,
        settings: ClusterSettings,
        *,
        task_environment: TaskEnvironment | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._settings = settings
        self._task_environment = task_environment
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, "deployer")

    def close(self) -> None:
        """Begin no further task; the client belongs to the caller."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[Deployed]:
        """One answer for each task.

        An existing task is found, whoever created it. Raises ``ClusterUnavailable`` when the cluster did not answer for
        some task or refused us, and ``DeploymentExpired``. The other tasks may exist by then: the next call finds them.
        ``ClusterUnavailable`` also when the caller would look for them in another namespace than ours; then nothing is
        created.
        """
        if deployment.place is not None:
            namespace_identity.require_same(self._api, deployment.place)
        if len(deployment.tasks) == 1:
            # Not behind the pages of other runs.
            return [self._deploy(deployment, crawler, deployment.tasks[0])]
        known, errors = self._known(deployment), list[LifecycleError]()

        def work(task: QueuedTask) -> Deployed | None:
            """Deploy one task; ``None`` when it failed, or was not begun because a further call is pointless."""
            if len(errors) >= PATIENCE or not all(map(_of_one_task, errors)):
                return None
            try:
                return self._deploy(deployment, crawler, task, known.get(str(task.index)))
            except (ClusterUnavailable, DeploymentExpired) as error:
                errors.append(error)
                return None

        found = [future.result() for future in [self._pool.submit(work, task) for task in deployment.tasks]]
        answers = [answer for answer in found if answer is not None]
        if errors:  # an outage before an expiry
            logger.warning("of %d tasks %d were answered for: %s", len(found), len(answers), errors[0])
            raise next((error for error in errors if isinstance(error, ClusterUnavailable)), errors[0])
        return answers

    def _known(self, deployment: Deployment) -> dict[str, Job]:
        """The existing Jobs of these tasks, by index: finding them by name would take two calls for each.

        Empty where we have no right to list: then they are found by name. Raises ``ApiError``.
        """
        indexes = ",".join(str(task.index) for task in deployment.tasks)
        selector = f"{labels.of_run(deployment.run_id, settled=None)},{labels.ATTEMPT}={deployment.attempt}"
        try:
            found = self._api.listing(self._api.jobs_path(), Job, labels=f"{selector},{labels.TASK} in ({indexes})")
        except Refused:
            return {}
        by_index = {job.metadata.labels[labels.TASK]: job for job in found.items}
        names = {index: cluster_name(deployment.run_id, int(index), deployment.attempt) for index in by_index}
        return {index: job for index, job in by_index.items() if job.metadata.name == names[index]}

    def _deploy(
        self, deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, known: Job | None = None
    ) -> Deployed:
        name = cluster_name(deployment.run_id, task.index, deployment.attempt)
        given = {} if self._task_environment is None else dict(self._task_environment(deployment, task))
        secret = {key: value for key, value in given.items() if key not in PUBLIC}
        public = {key: value for key, value in given.items() if key in PUBLIC}
        ours = _Ours(deployment.run, name, identity_of(deployment, crawler, task), spec_hash(deployment, crawler, task))

        def wanted() -> Mapping[str, Any]:
            return job_for(deployment, crawler, task, self._settings, public=public, secret_names=sorted(secret))

        try:
            if known is None:
                job, state = self._job(ours, wanted, deployment.expires_at)
            else:
                self._check_ours(known, ours)
                job, state = known, "existing"
        except _Answered as answer:
            return Deployed(task.index, answer.state, name, reason=str(answer))
        if secret and not _started(job):
            self._give(name, job.metadata.uid, secret, new=state == "created")
        return Deployed(task.index, state, name, job.metadata.uid)

    # --- the Job

    def _job(self, ours: _Ours, wanted: Callable[[], Mapping[str, Any]], expires_at: datetime) -> tuple[Job, str]:
        """The Job of this name, and whether it is new.

        Raises ``_Answered``, ``DeploymentExpired`` and ``ClusterUnavailable``.
        """
        try:
            body = wanted()
        except InvalidRequest as why:
            return self._found(ours, _Answered("refused", str(why))), "existing"

        def left_s() -> float:
            return (expires_at - self._clock()).total_seconds()

        unanswered: ApiError | None = None
        for _ in range(TRIES):
            try:
                if (elsewhere := given_away(self._api, body)) is not None:
                    return self._found(ours, unanswered or _Answered("refused", elsewhere)), "existing"
                # The server gives up when the time for creation is over: from then on a stop takes the Job's absence as
                # proof.
                answer = self._api.post(self._api.jobs_path(), body, left_s=left_s)
                return decode(Job, answer), "created"
            except TooLate:
                expired = DeploymentExpired(f"the deployment call expired at {expires_at.isoformat()}")
                return self._found(ours, expired), "existing"
            except Refused as error:
                # The server refuses before it checks the name. An earlier try may have created the Job, which may even
                # be the one that uses up the quota. While that try is unanswered, the Job may appear after this look.
                answered = self._refused(error)
                return self._found(ours, unanswered or answered), "existing"
            except Conflict as error:
                if error.reason != "AlreadyExists":
                    raise
            except ApiError as error:
                # It is unknown whether it was created. The name makes a second try harmless; reading first is cheaper.
                if not error.effect_unknown:
                    raise
                unanswered = error
            found = find_job(self._api, ours.name)
            if found is not None:
                self._check_ours(found, ours)
                return found, "existing"
        raise unanswered or ClusterUnavailable(f"the Job {ours.name} comes and goes")

    def _found(self, ours: _Ours, otherwise: Exception) -> Job:
        """The Job that an earlier try created, perhaps in another replica. Raises ``otherwise`` if there is none."""
        found = find_job(self._api, ours.name)
        if found is None:
            raise otherwise
        self._check_ours(found, ours)
        return found

    def _check_ours(self, found: Job, ours: _Ours) -> None:
        """Raise ``_Answered`` for a Job that does not belong to this deployment.

        The hash covers run, task and request, so a Job with manually edited labels is still ours. So is a Job that
        somebody deletes: its pod may execute for its whole grace, and later looks judge its end. Waiting for its end
        would deploy the same attempt twice.
        """
        meta = found.metadata
        same, settled = meta.annotations.get(labels.SPEC_HASH) == ours.spec_hash, labels.SETTLED in meta.labels
        if same and not settled:
            return
        managed = meta.labels.get(labels.MANAGED_BY) == labels.MANAGER
        if managed and not ours.run.owns(run_uid := run_uid_of(meta)):
            # It may be removed, or taken over by its own run; until then this name is not free.
            raise _Answered("deferred", ours.run.foreign(f"the Job {meta.name} ({meta.uid})", run_uid))
        differs = [key for key, value in ours.labels.items() if meta.labels.get(key) != value]
        if not same:
            differs.append(labels.SPEC_HASH)
        if meta.deletion_timestamp is not None and (settled or differs):
            raise _Answered(
                "deferred",
                f"a former Job {meta.name} is still being deleted, and this one is created after it; if its pod is held"
                " by our finalizer, an administrator frees it with: crawlctl cluster release",
            )
        if settled:
            raise _Answered(
                "refused",
                f"a Job {meta.name} exists already, and its end was recorded: it is of another database that counted "
                "its runs in this namespace; delete its Jobs, or use another namespace",
            )
        raise _Answered(
            "refused",
            f"a Job {meta.name} exists already and is not ours: it differs in {', '.join(differs)}; delete it, or "
            "use another namespace for each installation",
        )

    def _refused(self, error: Refused) -> _Answered:
        """Return the task's answer for a refusal. Raises the error where the refusal is not about the task."""
        words = error.words
        if error.status == 403:
            if "exceeded quota" in words:
                return _Answered("deferred", f"the namespace's quota is used up: {words}")
            if "NamespaceTerminating" in error.causes or "is being terminated" in words:
                return _Answered("deferred", f"the namespace {self._api.namespace} is being deleted: {words}")
        if error.status in (413, 422) or (error.status in (400, 403) and _DENIED.search(words)):
            return _Answered("refused", f"the cluster does not take this Job: {words}")
        if error.status == 400 and error.reason == "BadRequest":
            return _Answered("refused", f"the cluster does not understand this Job: {words}")
        raise error

    # --- the Secret

    def _give(self, name: str, uid: str, values: Mapping[str, str], *, new: bool) -> None:
        """Create the task's Secret, unless it exists; the container does not start without it.

        Only the right to create Secrets is needed: an existing one is not read, because only tries of this Job create
        one of its name. But beside a ``new`` Job it may be the Secret of a former Job, which the garbage collector will
        remove. Raises ``ApiError``.
        """
        path = self._api.path("secrets")
        try:
            self._api.post(path, secret_for(name, uid, values))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            if new:  # another try of this Job may have been quicker: that costs one more try
                text = f"the Job {name} is new, and its Secret is there: of a former Job that is still being removed"
                raise Conflict(text, status=error.status, reason=error.reason, words=error.words) from error


def given_away(api: Api, job: Mapping[str, Any]) -> str | None:
    """Return why the Job must not be created, and the cure: its queue would give it to a controller elsewhere.

    The server answers this by a dry run. ``None`` for a Job without a queue, and where the server would refuse it
    anyway. Raises ``ApiError``.
    """
    if (queue := job["metadata"]["labels"].get(labels.QUEUE)) is None:
        return None
    try:
        other = decode(Job, api.post(api.jobs_path(), job, dry_run=True)).other_controller
    except Refused:
        return None
    if other is None:
        return None
    return (
        f"Jobs of the queue {queue} are carried out by {other}, perhaps on another cluster, where nobody here can "
        "follow them; give the crawler a queue without MultiKueue (kubernetes.queue)"
    )


def _started(job: Job) -> bool:
    """Return whether its container runs or ran, which is impossible without its Secret."""
    status = job.status
    return bool(status.ready or status.succeeded or status.failed)


def _of_one_task(error: LifecycleError) -> bool:
    """Return whether other tasks may succeed although this one failed; silence and refusals concern all of them."""
    return isinstance(error, Conflict) or (type(error) is ApiError and (error.status or 0) >= 500)
