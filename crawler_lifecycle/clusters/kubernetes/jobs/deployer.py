"""Creation of tasks' Jobs, each at most once, despite parallel calls and lost responses
(docs/kubernetes.md).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.clusters.kind import TaskEnvironment
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import (
    ApiError,
    Conflict,
    RequestRefused,
    TooLate,
)
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, decode
from crawler_lifecycle.clusters.kubernetes.polls import namespace_identity
from crawler_lifecycle.clusters.kubernetes.polls.listing import find_job, run_uid_of, task_id_of
from crawler_lifecycle.clusters.kubernetes.polls.predicates import may_execute_again
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentExpired,
    InvalidRequest,
    LifecycleError,
)
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask
from crawler_lifecycle.settings import ClusterSettings

from .manifest import identity_of, job_for, secret_for, spec_hash

logger = logging.getLogger(__name__)

#: The maximum number of parallel API calls for pages of tasks. A page of 500 must be done within 25
#: s.
THREADS = 16
#: The maximum number of tries to create a Job, when the Job's name is in use and then free again,
#: or when a response is lost.
TRIES = 3
#: After this many failed tasks, no more tasks of a page are begun, even if each error concerned
#: only one task.
PATIENCE = 8
#: The variables of the task's environment that are not secret.
PUBLIC = frozenset({"CRAWL_GATEWAY_URL", "CRAWL_UPLOAD_URL"})

_DENIED = re.compile(r"denied (the )?request")


@dataclass(frozen=True, slots=True)
class _Ours:
    """The fields that identify a task's Job among all Jobs that ever had its name."""

    run: RunRef
    name: str
    labels: Mapping[str, str]
    hash_as: Callable[[int | None], str]
    """Returns the hash of the request, computed with this id of the task's row; ``None`` means the
    task's own id.
    """


class _TaskAnswer(Exception):
    """The final result for one task: ``refused`` or ``deferred``, with the reason."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(eq=False)
class KubernetesDeployer:
    """A deployer that creates tasks as Jobs in one namespace.

    This class implements ``Deployer``, and is thread-safe.

    ``task_environment`` returns variables that only this task may know. The secret variables are
    stored in a Secret for the task, never in its Job, because more people can read Jobs than
    Secrets.
    """

    kind = "kubernetes"

    api: Api
    settings: ClusterSettings
    task_environment: TaskEnvironment | None = None
    clock: Clock = utc_now

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "deployer")

    def close(self) -> None:
        """Begin no further task. The API client stays open, because it belongs to the caller."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        """Create the tasks' Jobs, and return one answer for each task.

        A Job that already exists is found, no matter which call created it. Raises
        ``ClusterUnavailable`` when the cluster did not answer for a task or refused us, or when the
        caller reads a namespace other than ours (then nothing is created). Raises
        ``DeploymentExpired``. After an error some tasks may exist, and the next call finds them.
        """
        if deployment.place is not None:
            namespace_identity.require_same(self.api, deployment.place)
        before = {task.index: task.attempt - 1 for task in deployment.tasks if task.attempt > 1}
        former = {
            index: job
            for index, job in self._known(deployment, before).items()
            if may_execute_again(job)
        }
        if len(deployment.tasks) == 1:
            # A single task must not wait for the pages of other runs.
            return [self._deploy(deployment, crawler, deployment.tasks[0], None, former)]
        known = self._known(deployment, {task.index: task.attempt for task in deployment.tasks})
        errors = list[LifecycleError]()

        def work(task: QueuedTask) -> DeployedTask | None:
            """Deploy one task.

            Return ``None`` when it failed, or when earlier errors make another call pointless.
            """
            if len(errors) >= PATIENCE or not all(map(_of_one_task, errors)):
                return None
            try:
                return self._deploy(deployment, crawler, task, known.get(task.index), former)
            except (ClusterUnavailable, DeploymentExpired) as error:
                errors.append(error)
                return None

        found = [
            future.result()
            for future in [self._pool.submit(work, task) for task in deployment.tasks]
        ]
        answers = [answer for answer in found if answer is not None]
        if errors:  # report an outage rather than an expiry
            logger.warning(
                "%d of %d tasks have a response; the first error is: %s",
                len(answers),
                len(found),
                errors[0],
            )
            raise next(
                (error for error in errors if isinstance(error, ClusterUnavailable)), errors[0]
            )
        return answers

    def _known(self, deployment: Deployment, tries: Mapping[int, int]) -> dict[int, Job]:
        """List the run's existing Jobs of these tries (attempt by index) in one call.

        Each read by name would take two calls. Return an empty result if we may not list Jobs; each
        Job is then found by name. Raises ``ApiError``.
        """
        if not tries:
            return {}
        indexes = ",".join(map(str, tries))
        attempts = ",".join(map(str, sorted(set(tries.values()))))
        selector = (
            f"{labels.of_run(deployment.run_id, settled=None)},{labels.ATTEMPT} in ({attempts})"
        )
        try:
            found = self.api.listing(
                self.api.jobs_path(), Job, labels=f"{selector},{labels.TASK} in ({indexes})"
            )
        except RequestRefused:
            return {}
        by_name = {job.metadata.name: job for job in found.items}
        names = {
            index: cluster_name(deployment.run_id, index, attempt)
            for index, attempt in tries.items()
        }
        return {index: by_name[name] for index, name in names.items() if name in by_name}

    def _deploy(
        self,
        deployment: Deployment,
        crawler: CrawlerDefinition,
        task: QueuedTask,
        known: Job | None,
        former: Mapping[int, Job],
    ) -> DeployedTask:
        name = cluster_name(deployment.run_id, task.index, task.attempt)
        given = (
            {} if self.task_environment is None else dict(self.task_environment(deployment, task))
        )
        secret = {key: value for key, value in given.items() if key not in PUBLIC}
        public = {key: value for key, value in given.items() if key in PUBLIC}

        def hash_as(row: int | None) -> str:
            return spec_hash(deployment, crawler, replace(task, task_id=row or task.task_id))

        ours = _Ours(deployment.run, name, identity_of(deployment, crawler, task), hash_as)

        def wanted() -> Mapping[str, Any]:
            return job_for(
                deployment.of(task),
                crawler,
                task,
                self.settings,
                public=public,
                secret_names=sorted(secret),
            )

        try:
            if known is not None:
                self._check_ours(known, ours)
                job = known
                state = "existing"
            elif (other := former.get(task.index)) is not None and deployment.run.owns(
                run_uid_of(other.metadata)
            ):
                job = self._found(ours, _suspended(other))
                state = "existing"
            else:
                job, state = self._job(ours, wanted, deployment.expires_at)
        except _TaskAnswer as answer:
            return DeployedTask(task.index, answer.state, name, reason=str(answer))
        status = job.status
        # A Job whose container is running or has run has its Secret.
        if secret and not (status.ready or status.succeeded or status.failed):
            self._give(name, job.metadata.uid, secret, new=state == "created")
        return DeployedTask(task.index, state, name, job.metadata.uid)

    # --- the Job

    def _job(
        self, ours: _Ours, wanted: Callable[[], Mapping[str, Any]], expires_at: datetime
    ) -> tuple[Job, str]:
        """Create or find the Job, and return it with its state: ``created`` or ``existing``.

        Raises ``_TaskAnswer``, ``DeploymentExpired`` and ``ClusterUnavailable``.
        """
        try:
            body = wanted()
        except InvalidRequest as why:
            return self._found(ours, _TaskAnswer("refused", str(why))), "existing"

        def left_s() -> float:
            return (expires_at - self.clock()).total_seconds()

        unanswered: ApiError | None = None
        for _ in range(TRIES):
            try:
                if (elsewhere := given_away(self.api, body)) is not None:
                    return self._found(
                        ours, unanswered or _TaskAnswer("refused", elsewhere)
                    ), "existing"
                # The server gives up at the end of the time for the creation. After this time, a
                # stop takes the absence of the Job as proof that it will never exist.
                answer = self.api.post(self.api.jobs_path(), body, left_s=left_s)
                return decode(Job, answer), "created"
            except TooLate:
                expired = DeploymentExpired(
                    f"the deployment call expired at {expires_at.isoformat()}"
                )
                return self._found(ours, expired), "existing"
            except RequestRefused as error:
                # The server checks the quota before the name. An earlier try may have created the
                # Job, which may even be the reason why the quota is used up. If that try has had no
                # response yet, the Job may still appear.
                answered = self._refused(error)
                return self._found(ours, unanswered or answered), "existing"
            except Conflict as error:
                if error.reason != "AlreadyExists":
                    raise
            except ApiError as error:
                # We do not know whether the Job was created. A second try is harmless, because the
                # name is the same, but a read by name is cheaper.
                if not error.effect_unknown:
                    raise
                unanswered = error
            if (found := find_job(self.api, ours.name)) is not None:
                self._check_ours(found, ours)
                return found, "existing"
        raise unanswered or ClusterUnavailable(
            f"the name of the Job {ours.name} is in use and then free again, repeatedly"
        )

    def _found(self, ours: _Ours, otherwise: Exception) -> Job:
        """Return the Job that an earlier try created, perhaps in another replica.

        Raises ``otherwise`` if there is none.
        """
        if (found := find_job(self.api, ours.name)) is None:
            raise otherwise
        self._check_ours(found, ours)
        return found

    def _check_ours(self, found: Job, ours: _Ours) -> None:
        """Raise ``_TaskAnswer`` for a Job that does not belong to this deployment.

        The hash covers run, task and request, so a Job is still ours after a manual edit of its
        labels. It is also still ours if the task's id has changed: a restored database that lacks
        the task's row creates a new row. A Job that is being deleted is ours, too: its pod may
        execute for the whole grace period, and later polls judge how the pod ended. If we waited
        until the Job is gone, the same attempt would be deployed twice.
        """
        meta = found.metadata
        hashes = map(ours.hash_as, (None, task_id_of(meta)))
        same = meta.annotations.get(labels.SPEC_HASH, "") in hashes
        settled = labels.SETTLED in meta.labels
        if same and not settled:
            return
        managed = meta.labels.get(labels.MANAGED_BY) == labels.MANAGER
        if managed and not ours.run.owns(run_uid := run_uid_of(meta)):
            # Another run owns this Job. The name is free only after the Job is removed.
            raise _TaskAnswer(
                "deferred", ours.run.foreign(f"the Job {meta.name} ({meta.uid})", run_uid)
            )
        differs = [key for key, value in ours.labels.items() if meta.labels.get(key) != value]
        if not same:
            differs.append(labels.SPEC_HASH)
        if meta.deletion_timestamp is not None and (settled or differs):
            raise _TaskAnswer(
                "deferred",
                f"a previous Job {meta.name} is still being deleted, and this one is created after "
                "it; if our finalizer "
                "keeps its pod, an administrator removes the finalizer with: crawlctl cluster "
                "release",
            )
        if settled:
            raise _TaskAnswer(
                "refused",
                f"a Job {meta.name} already exists, and its end was recorded: it belongs to "
                "another database that uses "
                "this namespace; delete its Jobs, or use another namespace",
            )
        raise _TaskAnswer(
            "refused",
            f"a Job {meta.name} already exists and is not ours: it differs in "
            f"{', '.join(differs)}; delete it, or "
            "use another namespace for each installation",
        )

    def _refused(self, error: RequestRefused) -> _TaskAnswer:
        """Return the task's result after a refusal.

        Raises the error if it does not concern this task alone.
        """
        words = error.words
        if error.status == 403:
            if "exceeded quota" in words:
                return _TaskAnswer("deferred", f"the namespace's quota is used up: {words}")
            if "NamespaceTerminating" in error.causes or "is being terminated" in words:
                return _TaskAnswer(
                    "deferred", f"the namespace {self.api.namespace} is being deleted: {words}"
                )
        if error.status in (413, 422) or (error.status in (400, 403) and _DENIED.search(words)):
            return _TaskAnswer("refused", f"the cluster does not accept this Job: {words}")
        if error.status == 400 and error.reason == "BadRequest":
            return _TaskAnswer("refused", f"the cluster does not understand this Job: {words}")
        raise error

    # --- the Secret

    def _give(self, name: str, uid: str, values: Mapping[str, str], *, new: bool) -> None:
        """Create the task's Secret, unless it exists. The container does not start without it.

        An existing Secret is not read, so we need permission only to create Secrets: only tries of
        this Job create a Secret with its name. But if the Job is ``new``, an existing Secret may
        belong to a previous Job, and the garbage collector will remove it. Then raise ``Conflict``,
        so that the call is repeated. Raises ``ApiError``.
        """
        path = self.api.path("secrets")
        try:
            self.api.post(path, secret_for(name, uid, values))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            # Another try to create this Job may also have created the Secret. Then this costs only
            # one more try.
            if new:
                text = (
                    f"the Job {name} is new, but a Secret of its name exists, perhaps of a "
                    "previous Job; try again"
                )
                raise Conflict(
                    text, status=error.status, reason=error.reason, words=error.words
                ) from error


def given_away(api: Api, job: Mapping[str, Any]) -> str | None:
    """Return the reason and the fix if the Job's queue would give the Job to another controller, as
    a dry run on the server shows.

    Otherwise, also for a Job without a queue or one that the server refuses, return ``None``.
    Raises ``ApiError``.
    """
    if (queue := job["metadata"]["labels"].get(labels.QUEUE)) is None:
        return None
    try:
        other = decode(Job, api.post(api.jobs_path(), job, dry_run=True)).other_controller
    except RequestRefused:
        return None
    return other and (
        f"Jobs of the queue {queue} are carried out by {other}, perhaps on another cluster, where "
        "we cannot follow "
        "them; give the crawler a queue without MultiKueue (kubernetes.queue)"
    )


def _suspended(former: Job) -> _TaskAnswer:
    """Return the result for a task whose previous try is suspended and may execute again at any
    time.
    """
    return _TaskAnswer(
        "deferred",
        f"the Job {former.metadata.name} of the previous try was suspended and gets another pod "
        f"when it is resumed; this try begins when that Job has ended. A "
        "worker ends it; if none does, delete it",
    )


def _of_one_task(error: LifecycleError) -> bool:
    """Return whether the error concerns only one task.

    A missing response or a refusal concerns all tasks.
    """
    return isinstance(error, Conflict) or (type(error) is ApiError and (error.status or 0) >= 500)
