"""Labels, annotations and the finalizer that identify our objects.

A new version must not rename them, because it would no longer find the existing objects. The Job
and its pod both have the identity labels, which never change: a watch reports an object as deleted
when its labels no longer match the selector.
"""

from __future__ import annotations

DOMAIN = "crawler-lifecycle"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "crawler-lifecycle"

RUN = f"{DOMAIN}/run"
#: The uid of the run. After the database is restored, two runs may have the same number. An object
#: with another uid, or without one, is not ours.
RUN_UID = f"{DOMAIN}/run-uid"
ATTEMPT = f"{DOMAIN}/attempt"
#: The index of the task within its run.
TASK = f"{DOMAIN}/task"
TASK_ID = f"{DOMAIN}/task-id"
CRAWLER = f"{DOMAIN}/crawler"
TRIGGER = f"{DOMAIN}/trigger"
#: Set on a Job and its pod after their end was committed. From then on polls exclude these objects,
#: but people can still find them.
SETTLED = f"{DOMAIN}/settled"

#: Annotation: the hash of the request. An existing object with the same name is ours only if it has
#: the same hash.
SPEC_HASH = f"{DOMAIN}/spec-hash"

#: Annotation on a Job and its pod: "false" when the crawler runs without our runner; then exit code
#: 0 alone means success. If the value is not "false", or there is none, the runner was used, and a
#: missing summary means that the runner died.
RUNNER = f"{DOMAIN}/runner"

#: Annotations on a Job and its pod: the version and the commit in the catalogue entry.
VERSION = f"{DOMAIN}/version"
COMMIT = f"{DOMAIN}/commit"
#: Annotation on a Job and its pod: the digest of the deployed package that the crawler executes.
CODE = f"{DOMAIN}/code"

#: Annotation on the Job: the main fields of the run's row, in case the database loses it
#: (``domain.adoption``).
RECORD = f"{DOMAIN}/record"

#: Annotation that an administrator sets on the namespace: uids of previous namespaces that are gone
#: permanently, with all tasks.
REPLACES = f"{DOMAIN}/replaces"

#: Finalizer on the pod: it keeps the final status readable until the end is committed. Without it,
#: the exit code and summary of a stopped pod are visible for less than half a second.
FINALIZER = f"{DOMAIN}/end-not-recorded"

#: Label on a Job: the Kueue queue in which the Job waits for capacity.
QUEUE = "kueue.x-k8s.io/queue-name"
#: Label on a Job: the WorkloadPriorityClass that determines the Job's place in its queue.
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
#: The labels that polls read. The first ones usually have the same values in all objects of a run.
OF_RUN = (MANAGED_BY, RUN, RUN_UID, ATTEMPT)
READ = (*OF_RUN, TASK, TASK_ID, SETTLED, QUEUE, QUEUE_PRIORITY)
#: The annotations that polls read.
ANNOTATIONS_READ = (RUNNER, TASK_ID, VERSION, COMMIT, CODE)

#: The name of the crawler's container in the pod.
CONTAINER = "crawler"


def of_run(run_id: int, *, settled: bool | None = False) -> str:
    """Return the selector of a run's objects: unsettled ones, settled ones (``True``), or all
    (``None``).
    """
    return f"{ours(settled=settled)},{RUN}={run_id}"


def ours(*, settled: bool | None = False) -> str:
    """Return the selector of our objects in the namespace.

    ``settled`` has the same meaning as in ``of_run``.
    """
    mark = {None: "", False: f",!{SETTLED}", True: f",{SETTLED}"}[settled]
    return f"{MANAGED_BY}={MANAGER}{mark}"
