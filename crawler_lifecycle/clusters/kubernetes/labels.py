"""Labels, annotations and the finalizer that identify our objects.

Changing one loses live objects. The identity labels are on the Job and, by its template, on its pod, and never change:
a watch reports an object whose labels stop matching its selector as deleted.
"""

from __future__ import annotations

DOMAIN = "crawler-lifecycle"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "crawler-lifecycle"

RUN = f"{DOMAIN}/run"
#: The uid of the run, which distinguishes runs that had the same number: an object without it, or with another one, is
#: not ours.
RUN_UID = f"{DOMAIN}/run-uid"
ATTEMPT = f"{DOMAIN}/attempt"
#: The index of the task within its run.
TASK = f"{DOMAIN}/task"
TASK_ID = f"{DOMAIN}/task-id"
CRAWLER = f"{DOMAIN}/crawler"
TRIGGER = f"{DOMAIN}/trigger"
#: Put on Job and pod when the end was committed: looks leave them out from then on, people still find them.
SETTLED = f"{DOMAIN}/settled"

#: Annotation: the hash of the request, so that an existing object of the same name is adopted only if it is the same.
SPEC_HASH = f"{DOMAIN}/spec-hash"

#: Annotation of Job and pod: "false" without our runner around the crawler, so that exit 0 alone means the end of a
#: crawl. Any other value, or none: the runner was there, and a missing summary means that it died.
RUNNER = f"{DOMAIN}/runner"

#: Annotation of the Job: the main fields of the run's row (``domain.adoption``), for a database that loses it.
RECORD = f"{DOMAIN}/record"

#: Annotation of the namespace, set by a person: uids of namespaces that are gone for good, with all their tasks.
REPLACES = f"{DOMAIN}/replaces"

#: On the pod: its final status stays readable until the end was committed. Without it, exit code and summary of a
#: stopped pod are visible for less than half a second.
FINALIZER = f"{DOMAIN}/end-not-recorded"

#: Label of a Job: the queue (of Kueue) in which it waits for capacity.
QUEUE = "kueue.x-k8s.io/queue-name"
#: Label of a Job: the WorkloadPriorityClass that orders it within its queue.
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"

#: The name of the crawler's container in the pod.
CONTAINER = "crawler"


def of_run(run_id: int, *, settled: bool | None = False) -> str:
    """The selector of a run's objects: unsettled ones, settled ones (``True``), or all (``None``)."""
    return f"{ours(settled=settled)},{RUN}={run_id}"


def ours(*, settled: bool | None = False) -> str:
    """The selector of all our objects."""
    mark = {None: "", False: f",!{SETTLED}", True: f",{SETTLED}"}[settled]
    return f"{MANAGED_BY}={MANAGER}{mark}"
