"""The Kubernetes cluster: what runs, what waits, how it ended, and how to stop it (docs/kubernetes.md).

No memory that truth would depend on: a look is two complete lists, so that any number of processes may look at the same
run and any of them may die. What the API did not answer is an error and never an observation.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from crawler_lifecycle.adapters.kubernetes.client.connection import Api
from crawler_lifecycle.adapters.kubernetes.client.objects import Job, Named, Pod
from crawler_lifecycle.adapters.kubernetes.jobs.deletion import Deleting
from crawler_lifecycle.adapters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.adapters.kubernetes.looks import explanations, proof_of_absence
from crawler_lifecycle.adapters.kubernetes.looks.listing import (
    Key,
    Objects,
    is_of,
    key_of,
    name_of,
    of_tasks,
    pods_of_tasks,
    read_objects,
    run_uid_of,
    task_id_of,
)
from crawler_lifecycle.adapters.kubernetes.looks.log_tails import Tails
from crawler_lifecycle.adapters.kubernetes.looks.memory import MemoryNow
from crawler_lifecycle.adapters.kubernetes.looks.namespace_identity import Here
from crawler_lifecycle.adapters.kubernetes.looks.namespace_identity import here as place_here
from crawler_lifecycle.adapters.kubernetes.looks.predicates import crawler_container, ended, newest
from crawler_lifecycle.adapters.kubernetes.looks.progress import last_progress
from crawler_lifecycle.adapters.kubernetes.looks.reading import read_task
from crawler_lifecycle.adapters.kubernetes.looks.run_records import task_records
from crawler_lifecycle.adapters.kubernetes.looks.termination_message import read_summary
from crawler_lifecycle.domain.audit import ClusterTask
from crawler_lifecycle.domain.names import run_number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, Observation, Phase
from crawler_lifecycle.ports import Details, FileSource, KeptEnd, Look, TaskRecord, TaskRef

from . import labels

logger = logging.getLogger(__name__)

#: Seconds for which an inventory is handed out in pages of the same reading.
INVENTORY_S = 60.0


class Files(Protocol):
    """Where supporting files of pods are found."""

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]: ...


def _now() -> datetime:
    return datetime.now(UTC)


class KubernetesCluster:
    """The Jobs and pods of one namespace. Implements ``Cluster`` and ``EvidenceKeeper``; thread-safe.

    ``files`` finds what pods left, on a shared volume or in object storage; without it there is nothing to be found.
    """

    kind = "kubernetes"
    #: A node removes the container of a deleted pod as soon as it has ended, whatever our finalizer keeps of the pod.
    log_fades = True

    def __init__(self, api: Api, *, files: Files | None = None, clock: Callable[[], datetime] = _now) -> None:
        self._api = api
        self._files = files
        self._clock = clock
        self._tails = Tails(api)
        self._deleting = Deleting(api)
        self._keeping = Finalizers(api, clock)
        self._memory = MemoryNow(api)
        self._asking = ThreadPoolExecutor(proof_of_absence.THREADS, thread_name_prefix="absence")
        self._lock = threading.Lock()
        self._inventories: dict[int | None, tuple[float, list[ClusterTask]]] = {}

    # --- looks

    def place(self, beside: Collection[str] = ()) -> str | None:
        """The namespace, with its uid and that of the cluster as far as we may read them. Raises ``ApiError``.

        Raises ``ClusterUnavailable`` when what is ``beside`` may live on in another namespace.
        """
        place = str(place_here(self._api))
        if others := set(beside) - {place}:
            Here(self._api).left_for_good(others)
        return place

    def look(self, run: RunRef, tasks: Sequence[TaskRef]) -> Look:
        """Two complete lists, and questions by name about what should be in them and is not. Raises ``ApiError``."""
        began, now = time.monotonic(), self._clock()
        listed = read_objects(self._api, labels.of_run(run.run_id), {name_of(run.run_id, task) for task in tasks})
        tasks = [_known(run, task, listed) for task in tasks]
        missing = [task for task in tasks if task.uid is not None and _objects_of(run.run_id, task, listed).job is None]
        asked = proof_of_absence.ask(self._api, run.run_id, missing, listed, self._asking) if missing else {}
        found = [asked.get(task.uid or "") or _objects_of(run.run_id, task, listed) for task in tasks]
        here = Here(self._api)
        left = here.left_for_good([task.place for task in proof_of_absence.unseen(tasks, found)])
        events = explanations.events_for(self._api, _wordless(tasks, found, now))
        seen = []
        for task, one in zip(tasks, found, strict=True):
            if task.uid is None:
                seen.append(_never_seen(run, task, listed.jobs.get(name_of(run.run_id, task)), now))
            else:
                seen.append(proof_of_absence.observe(task, one, now, partial(self._read, task, events, now), left))
        pods = [one.pods for one in found]
        seen = explanations.namespace(here, self._api.namespace, tasks, seen, pods)
        seen = self._counted(run.run_id, seen, pods)
        waits = [proof_of_absence.again_s(task, one, now) for task, one in zip(tasks, seen, strict=True)]
        again_s = min((wait for wait in waits if wait is not None), default=None)
        return Look(now, time.monotonic() - began, seen, again_s)

    def _read(
        self, task: TaskRef, events: explanations.Events, now: datetime, job: Job | None, pods: Sequence[Pod]
    ) -> Observation:
        about = events.of(one.metadata.uid for one in ([job] if job else []) + list(pods))
        seen = read_task(task, job, pods, about, now)
        # The other phases held at some time since the look began; an end was read only now, after it happened.
        return replace(seen, observed_at=self._clock()) if seen.phase is Phase.ENDED else seen

    def _counted(self, run_id: int, seen: list[Observation], pods: Sequence[Sequence[Pod]]) -> list[Observation]:
        """The observations with what the crawlers counted, for those whose turn it is."""
        places = {one.index: place for place, one in enumerate(seen) if one.phase is Phase.EXECUTING}
        turn = [places[index] for index in self._tails.rotate(run_id, list(places))]
        chosen = [(place, pod) for place in turn if (pod := newest(pods[place])) is not None]
        for (place, _), tail in zip(chosen, self._tails.of_looks([pod for _, pod in chosen]), strict=True):
            progress = last_progress(tail) if tail else None
            if progress is not None:
                later = seen[place].attempt > 1  # a first attempt has nothing to resume
                seen[place] = replace(
                    seen[place],
                    counters=progress.counters,
                    progress_at=progress.at,
                    quiet=progress.quiet,
                    resumed=progress.resumed if later else None,
                    resume_note=progress.resume_note if later else None,
                )
        return seen

    # --- details

    def details(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, memory; tasks about which nothing can be read are left out.

        Raises ``ApiError`` when the pods cannot be listed.
        """
        if not tasks:
            return []
        pods = pods_of_tasks(self._api, run, tasks)
        found = [(task, pod) for task in tasks if (pod := newest(pods[task])) is not None]
        memory = self._memory.of(of_tasks(run.run_id, tasks), [pod.metadata.name for _, pod in found if not ended(pod)])
        tails = self._tails.to_keep([pod for _, pod in found])
        told = []
        for (task, pod), tail in zip(found, tails, strict=True):
            counters, peak = _last_words(pod, tail)
            peaks = [value for value in (peak, memory.get(pod.metadata.name)) if value is not None]
            # Without its log there is nothing here that an observation would not say, and one kept before stays.
            if tail is not None or peaks:
                told.append(Details(task.task_id, tail, counters, max(peaks, default=None)))
        return told

    # --- stopping

    def stop(self, run: RunRef, task: TaskRef) -> None:
        """Delete the Job in the foreground: no new pods, one SIGTERM, and it is gone after its last pod.

        Raises ``ApiError``.
        """
        self._deleting.stop(run, task)

    def kill(self, run: RunRef, task: TaskRef) -> None:
        """Delete its pods with a grace of a second. What that does is for looks to find out. Raises ``ApiError``.

        A node that has begun a longer grace, after a plain stop, finishes that one first; our runner learns of the
        force from the gateway and ends it. A pod's record is never removed by force: on a node that does not answer,
        the crawler may still execute.
        """
        self._deleting.kill(run, task)

    # --- what was committed

    def kept(self) -> list[KeptEnd]:
        """Ended tasks of all runs whose pods still carry our finalizer. Raises ``ApiError``."""
        return self._keeping.kept()

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        """Mark Jobs and pods of these tasks as settled, and take our finalizer off the pods. Raises ``ApiError``."""
        self._keeping.release(run, tasks)

    # --- files and inventory

    def files(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[FileSource]:
        """What these tasks left, as far as it can be reached from here."""
        return [] if self._files is None else self._files.files(run, tasks)

    def task_records(self, run: RunRef) -> list[TaskRecord]:
        """What the run's Jobs know of its tasks. Raises ``ApiError``."""
        return task_records(self._api, run)

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run on the labels of our Jobs and pods, settled ones too. Raises ``ApiError``."""
        for path in (self._api.jobs_path(), self._api.pods_path()):
            above = max([above, *self._api.listing(path, Named, labels=labels.ours(settled=None), keep=_run).items])
        return above

    def inventory(self, *, run_id: int | None = None, after: Key | None = None, limit: int = 500) -> list[ClusterTask]:
        """Everything of ours that waits or executes. Later pages are of the same reading. Raises ``ApiError``.

        What has the same key is in the same page, which may be longer for it: a pod that was left beside a new Job.
        """
        begin = after or (0, -1, 0)
        with self._lock:
            kept = self._inventories.get(run_id) if after is not None else None
        if kept is None or time.monotonic() - kept[0] > INVENTORY_S:
            kept = (time.monotonic(), self._everything(run_id))
            with self._lock:
                old = [key for key, (at, _) in self._inventories.items() if kept[0] - at > INVENTORY_S]
                for key in old:
                    del self._inventories[key]
                self._inventories[run_id] = kept
        rest = [task for task in kept[1] if task.key > begin]
        if not 0 < limit < len(rest):
            return rest[: max(limit, 0)]
        return rest[: bisect_right(rest, rest[limit - 1].key, key=lambda task: task.key)]

    def _everything(self, run_id: int | None) -> list[ClusterTask]:
        """In order; what is settled has ended."""
        now = self._clock()
        listed = read_objects(self._api, labels.ours() if run_id is None else labels.of_run(run_id))
        jobs = {job.metadata.uid: job for job in listed.jobs.values()}
        found = []
        for uid in {*jobs, *listed.pods}:
            job, pods = jobs.get(uid), listed.pods.get(uid, [])
            metas = [*([job.metadata] if job else []), *(pod.metadata for pod in pods)]
            key = next((key for meta in metas if (key := key_of(meta)) is not None), None)
            if key is None:
                logger.warning("%s carries our label and not the number of its run, task and attempt", metas[0].name)
                continue
            task_id = next((number for meta in metas if (number := task_id_of(meta)) is not None), None)
            seen = read_task(TaskRef(task_id or 0, key[1], key[2], uid), job, pods, (), now)
            if seen.phase in (Phase.WAITING, Phase.EXECUTING):
                executing = seen.phase is Phase.EXECUTING
                run_uid = next((it for meta in metas if (it := run_uid_of(meta)) is not None), None)
                found.append(ClusterTask(*key, executing, task_id, uid, seen.started_at, seen.node, run_uid))
        return sorted(found, key=lambda task: (task.key, task.uid or ""))


def _known(run: RunRef, task: TaskRef, listed: Objects) -> TaskRef:
    """With the uid of its Job, also where the answer to its creation never reached the database."""
    job = listed.jobs.get(name_of(run.run_id, task))
    ours = job is not None and task.uid is None and is_of(run, task, job.metadata.uid, job.metadata)
    return replace(task, uid=job.metadata.uid) if job is not None and ours else task


def _objects_of(run_id: int, task: TaskRef, listed: Objects) -> proof_of_absence.Found:
    """What the lists have of the task's own: its Job and its pods."""
    job = listed.jobs.get(name_of(run_id, task))
    own = job is not None and task.uid is not None and job.metadata.uid == task.uid
    return proof_of_absence.Found(job if own else None, listed.pods_of(task.uid))


def _run(one: Named) -> int:
    return run_number(one.metadata.labels.get(labels.RUN, ""))


def _never_seen(run: RunRef, task: TaskRef, other: Job | None, now: datetime) -> Observation:
    """A task that nothing on the cluster is known to be of; ``other`` has its name."""
    words = None
    if other is not None and not run.owns(run_uid := run_uid_of(other.metadata)):
        words = run.foreign(f"The Job {other.metadata.name} ({other.metadata.uid})", run_uid)
    elif other is not None:
        number = task_id_of(other.metadata)
        whose = f"belongs to task {number}" if number is not None else "does not say whose it is"
        words = f"Another Job ({other.metadata.uid}) is under its name and {whose}; this is task {task.task_id}"
    return Observation(task.index, task.attempt, Phase.ABSENT, now, reason=words)


def _wordless(
    tasks: Sequence[TaskRef], found: Sequence[proof_of_absence.Found], now: datetime
) -> list[tuple[str, Job | Pod]]:
    """The objects that wait and do not say for what: ("Job" or "Pod", the object)."""
    wordless: list[tuple[str, Job | Pod]] = []
    for task, one in zip(tasks, found, strict=True):
        if one.job is None or one.job.metadata.uid != task.uid:
            continue
        if not one.pods and explanations.job_is_wordless(one.job, now):
            wordless.append(("Job", one.job))
        wordless += [("Pod", pod) for pod in one.pods if explanations.pod_is_wordless(pod, now)]
    return wordless


def _last_words(pod: Pod, tail: str | None) -> tuple[Counters, int | None]:
    """Counters and peak memory by the runner's summary, else by the newest progress in the log."""
    main = crawler_container(pod)
    if main is not None and main.state.terminated is not None:
        summary = read_summary(main.state.terminated.message)
        if summary.counters != Counters():
            return summary.counters, summary.peak_memory
        said = last_progress(tail.encode()) if tail else None
        return (said.counters if said else Counters()), summary.peak_memory
    said = last_progress(tail.encode()) if tail else None
    return (said.counters if said else Counters()), None
