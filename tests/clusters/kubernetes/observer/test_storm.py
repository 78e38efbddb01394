"""Random clusters with random faults: at the end, every change was reported to somebody who then
polled.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.observer.changes import (
    OVER,
    Changes,
    ObjectState,
    TaskKey,
    pod_seen,
)
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.clusters.kubernetes.observer.reflector import Pace
from tests.clusters.local.local_fixture import wait_until
from tests.contracts.observer.kubernetes_harness import job_of
from tests.support.kube_api import (
    Answer,
    Cut,
    FakeApiServer,
    Fault,
    Mutate,
    Reset,
    Stale,
    StreamEnds,
    StreamError,
    Truncated,
    throttled,
)
from tests.support.kube_api.clients import patient
from tests.support.kube_api.problems import Problem
from tests.support.kube_api.store import JOBS

#: Periodic lists and ends of watches repair nothing within a test.
PACE = Pace(
    watch_s=(3600, 3600),
    list_s=3600,
    silence_s=600,
    first_s=0.02,
    most_s=0.1,
    healthy_s=3600,
    short_s=0.02,
)
RUNS, STEPS = 12, 60

WATCH_FAULTS: list[Fault] = [
    *(
        StreamEnds(0),
        StreamEnds(1),
        StreamEnds(2, broken=True),
        StreamEnds(0, broken=True, within_event=True),
    ),
    *(
        StreamError(),
        StreamError(500, "InternalError", "leader changed"),
        Answer(410),
        Answer(403),
        Answer(500),
    ),
    *(
        throttled(None),
        Reset(),
        Mutate(lambda event: {"type": "ADDED", "object": {"metadata": {}}}),
    ),
]
LIST_FAULTS: list[Fault] = [
    Cut(200),
    Truncated(5),
    Stale(2),
    Stale(9),
    Answer(401),
    Answer(410),
    Answer(503),
    Reset(),
]


class Polls:
    """Polls whenever a change is reported, and sees what is true at that moment."""

    def __init__(self, reader: Api, met: set[str]) -> None:
        self.reader = reader
        self.met = met
        self.seen: dict[int, dict[str, ObjectState]] = {}
        self._told: set[int] = set()
        self._lock = threading.Lock()

    def __call__(self, run_id: int, at: datetime, tasks: frozenset[tuple[int, int]] | None) -> None:
        with self._lock:
            self._told.add(run_id)

    def poll(self) -> None:
        """Poll once for all reports about a run until now, outside of the observer's thread, as the
        wake-ups do.
        """
        with self._lock:
            told, self._told = self._told, set()
        if told:
            true = self.true()
            self.seen |= {run_id: true.get(run_id, {}) for run_id in told}

    def true(self) -> dict[int, dict[str, ObjectState]]:
        found: dict[int, dict[str, ObjectState]] = {}
        for pod in self.reader.listing(self.reader.pods_path(), Pod).items:
            if (state := pod_seen(pod)) is not None:
                found.setdefault(state.key[0], {})[pod.metadata.uid] = state
        return found

    def unseen(self) -> list[tuple[int, dict[str, ObjectState], dict[str, ObjectState]]]:
        """Return runs whose last poll saw something untrue.

        An end needs to be seen only once. A poll may see a pod that appears and disappears between
        two lists while the observer cannot watch. Nobody can report its end: the next planned poll
        finds it.
        """
        true, wrong = self.true(), []
        for run_id in {*true, *self.seen}:
            now, then = true.get(run_id, {}), self.seen.get(run_id, {})
            kept = {
                u: state
                for u, state in then.items()
                if u in now or (state.stage != OVER and u in self.met)
            }
            if kept != now:
                wrong.append((run_id, now, then))
        return wrong


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the pods that an observer has seen, by uid."""
    found: set[str] = set()
    take = Changes.pod

    def pod(self: Changes, uid: str, pod: ObjectState, now: float) -> set[TaskKey]:
        found.add(uid)
        return take(self, uid, pod, now)

    monkeypatch.setattr(Changes, "pod", pod)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_at_rest_every_change_has_been_told(
    server: FakeApiServer, met: set[str], seed: int
) -> None:
    chosen = random.Random(seed)
    api, reader = patient(server), patient(server)
    polls, over = Polls(reader, met), threading.Event()
    observer = KubernetesObserver(api, pace=PACE, long_s=0.3)
    thread = threading.Thread(target=observer.watch, args=(polls, over))
    thread.start()
    try:
        for _ in range(STEPS):
            _fault(server, chosen)
            _event(server, reader, chosen)
            polls.poll()
            over.wait(chosen.choice([0.0, 0.0, 0.02]))
        # And nothing more: what is not reported now waits for the next periodic list.
        server.faults.clear()

        def rests() -> bool:
            polls.poll()
            return observer.health().up and polls.unseen() == []

        try:
            wait_until(rests)
        except AssertionError:
            pytest.fail(f"seed {seed}: never told: {polls.unseen()}; {observer.health()}")
    finally:
        over.set()
        thread.join(60)
        api.close()
        reader.close()


def _fault(server: FakeApiServer, chosen: random.Random) -> None:
    kind = chosen.choice(["pods", "jobs"])
    match chosen.randrange(8):
        case 0:
            server.faults.add("GET", rf"/{kind}\?(?=.*watch=true)", chosen.choice(WATCH_FAULTS))
        case 1:
            server.faults.add(
                "GET", rf"/{kind}\?(?!.*watch=true)(?=.*labelSelector)", chosen.choice(LIST_FAULTS)
            )
        case 2:
            server.end_watches()
        case 3:
            server.drop_connections()
        case 4:
            server.store.compact()


def _event(server: FakeApiServer, api: Api, chosen: random.Random) -> None:
    body = job_of(chosen.randrange(1, RUNS + 1), 0, {})
    name = body["metadata"]["name"]
    acts: list[Callable[[], object]] = [
        lambda: server.pod_starts(name),
        lambda: server.pod_starts(name),
        lambda: server.pod_unschedulable(name),
        lambda: server.pod_ends(name, chosen.choice([0, 1, 137])),
        lambda: server.delete_pod_behind(name),
        lambda: server.delete_behind(name),
    ]
    try:
        server.job(name)
    except Problem:
        server.routes._stored(JOBS, (server.namespace, name), body, False)
        return
    try:
        pod = server.pod(name)
    except AssertionError:
        if chosen.random() < 0.2:
            server.delete_behind(name)
        return
    if pod["status"]["phase"] in ("Succeeded", "Failed"):
        acts = acts[-2:]  # ends are kept
    elif pod["status"]["phase"] == "Running":
        acts = acts[-3:]
    chosen.choice(acts)()
