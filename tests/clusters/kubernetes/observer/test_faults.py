"""Every way in which a watch can fail: what is still noticed, what the observer reports about
itself, and how much it asks.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.observer import observer as observer_module
from crawler_lifecycle.clusters.kubernetes.observer import reflector
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.clusters.kubernetes.observer.reflector import Pace, Reflector
from tests.clusters.local.local_fixture import RUN, wait_until
from tests.contracts.observer.kubernetes_harness import job_of
from tests.contracts.observer.observer_harness import Told
from tests.support.kube_api import (
    Answer,
    Cut,
    FakeApiServer,
    Fault,
    Garbage,
    Silence,
    Stale,
    StreamEnds,
    StreamError,
    throttled,
)
from tests.support.kube_api.clients import patient
from tests.support.ports import deaf_port

pytestmark = pytest.mark.troubles

#: Pauses are tenths of seconds; periodic lists do not happen during a test.
PACE = Pace(
    watch_s=(3600, 3600),
    list_s=3600,
    silence_s=600,
    first_s=0.05,
    most_s=0.4,
    healthy_s=3600,
    short_s=0.2,
)
QUIET = replace(PACE, silence_s=0.5)

LONG_S = 3600.0

PODS, JOBS = r"/pods\?", r"/jobs\?"
WATCH = r"watch=true"
POD_WATCH, POD_LIST = rf"{PODS}(?=.*{WATCH})", rf"{PODS}(?!.*{WATCH})"
JOB_WATCH, JOB_LIST = rf"{JOBS}(?=.*{WATCH})", rf"{JOBS}(?!.*{WATCH})"


def observer(api: Api, pace: Pace = PACE) -> KubernetesObserver:
    """By its clock, nothing waits for long unless a test advances the clock."""
    return KubernetesObserver(api, pace=pace, long_s=LONG_S)


@contextmanager
def begun(seeing: KubernetesObserver) -> Iterator[Told]:
    """Wait until it is watching or trying to."""
    told, over = Told(seeing), threading.Event()
    thread = threading.Thread(target=seeing.watch, args=(told, over))
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join(60)


def reflectors(told: Told) -> tuple[reflector.Reflector[Any], ...]:
    session = told.observer._session  # type: ignore[attr-defined]
    return session._reflectors  # type: ignore[no-any-return]


def level(told: Told, server: FakeApiServer) -> int:
    """Wait until both watches have read everything up to now. Return how often something was
    reported.
    """
    version = server.store.version

    def there() -> bool:
        server.bookmark()
        return all(int(one._version or 0) >= version for one in reflectors(told))

    wait_until(there)
    return len(told.calls)


class Clock:
    """A clock that stands still until it is advanced, in place of the ``time`` module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def put(api: Api, run_id: int, index: int = 0, **spec: Any) -> str:
    """Create a Job of this run. Return its name."""
    body = job_of(run_id, index, {}, **spec)
    api.post(api.jobs_path(), body)
    return str(body["metadata"]["name"])


def most(seconds: float) -> int:
    """Return how often something may be tried in this time at ``PACE`` if every pause is as short
    as possible.
    """
    count, pause = 1, PACE.first_s
    while seconds > 0:
        seconds -= min(pause, PACE.most_s) / 2
        pause, count = pause * 2, count + 1
    return count


# --- the ordinary


def test_two_watches_and_two_lists_however_many_runs(server: FakeApiServer, api: Api) -> None:
    names = [put(api, run_id) for run_id in range(1, 31)]
    with Told(observer(api)).watching() as told:
        for run_id, name in enumerate(names, start=1):
            told.after(lambda name=name: server.pod_starts(name), run_id)  # type: ignore[misc]
        for run_id, name in enumerate(names[:10], start=1):
            told.after(lambda name=name: server.pod_ends(name), run_id)  # type: ignore[misc]
        # The pod reports a start once; an end is reported once, or also by its Job if that was
        # quicker.
        assert 30 + 10 <= level(told, server) <= 30 + 2 * 10
        wait_until(lambda: told.observer.health().watched == 20)
    assert (server.count("GET", WATCH), server.count("GET") - server.count("GET", WATCH)) == (2, 2)
    selectors = {
        request.query["labelSelector"] for request in server.requests if request.method == "GET"
    }
    assert selectors == {f"{labels.ours()},{labels.RUN}"}
    assert all(
        r.query["allowWatchBookmarks"] == "true" for r in server.requests if "watch" in r.query
    )


def test_the_tasks_that_changed_are_told_with_their_run(server: FakeApiServer, api: Api) -> None:
    first, second = (put(api, RUN, index) for index in (0, 4))
    with Told(observer(api)).watching() as told:
        told.after(lambda: server.pod_starts(first))
        told.after(lambda: server.pod_starts(second))
        assert {task for tasks in told.tasks for task in tasks or ()} == {(0, 1), (4, 1)}
        assert None not in told.tasks
        told.after(
            lambda: server.change_pod(first, lambda pod: pod["metadata"]["labels"].pop(labels.TASK))
        )
        assert told.tasks[-1] is None, "it may be any task of the run"
        told.tasks.clear()
        told.after(lambda: server.pod_ends(second))
        assert set(told.tasks) == {frozenset({(4, 1)})}


def test_many_changes_in_one_list_are_told_at_once(server: FakeApiServer, api: Api) -> None:
    names = [put(api, RUN, index) for index in range(5)]
    for name in names:
        server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        wait_until(lambda: told.calls)
        assert frozenset((index, 1) for index in range(5)) in told.tasks


def test_counters_and_heartbeats_tell_nothing(server: FakeApiServer, api: Api) -> None:
    name = put(api, RUN)
    server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        count = level(told, server)
        server.change_pod(name, lambda pod: pod["status"].update(podIP="10.1.2.3"))
        server.change_job(name, lambda job: job["status"].update(ready=0, active=1))
        server.change_pod(
            name, lambda pod: pod["metadata"].setdefault("annotations", {}).update(seen="now")
        )
        assert level(told, server) == count


def test_what_is_on_record_is_not_told_again(server: FakeApiServer, api: Api) -> None:
    """After a release, the finalizer is removed, and pod and Job are marked and no longer watched."""
    name = put(api, RUN)
    server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        told.after(lambda: server.pod_ends(name))
        count = level(told, server)
        mark = {"metadata": {"labels": {labels.SETTLED: "true"}}}
        api.patch(api.pods_path(server.pod(name)["metadata"]["name"]), mark)
        api.patch(api.jobs_path(name), mark)
        wait_until(lambda: told.observer.health().watched == 0)
        assert level(told, server) == count


@pytest.mark.parametrize(
    "happens",
    ["image", "unschedulable", "no pod", "slow", "deadline", "suspended", "node lost", "drained"],
)
def test_what_a_person_should_know_is_told(
    server: FakeApiServer, api: Api, happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(observer_module, "time", clock)
    server.controllers.kubelet_stops = None
    server.controllers.makes_pods = happens not in ("no pod", "suspended")
    name = put(api, RUN, suspend=happens == "suspended")
    if happens in ("deadline", "node lost", "drained"):
        server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        if happens in ("no pod", "slow", "suspended"):
            assert level(told, server) == (happens == "suspended")
            clock.now += LONG_S
            wait_until(lambda: told.calls)
            assert told.quiet() == 1
            return
        acts: dict[str, Callable[[], object]] = {
            "image": lambda: server.pod_waits(name, "ErrImagePull", "not found"),
            "unschedulable": lambda: server.pod_unschedulable(name),
            "deadline": lambda: server.job_fails(name, "DeadlineExceeded"),
            "node lost": lambda: server.node_lost(),
            "drained": lambda: server.pod_marked(name, "EvictionByEvictionAPI"),
        }
        told.after(acts[happens])
        if happens == "image":  # the two reasons alternate for ever
            count = level(told, server)
            waiting = {
                "waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            }
            server.change_pod(
                name, lambda pod: pod["status"]["containerStatuses"][0].update(state=waiting)
            )
            assert level(told, server) == count


@pytest.mark.parametrize("value", ["", "-7", "٧", "7" * 5000])
def test_labels_that_name_no_run_harm_nobody(server: FakeApiServer, api: Api, value: str) -> None:
    name = put(api, 8)
    with Told(observer(api)).watching() as told:
        server.change_pod(name, lambda pod: pod["metadata"]["labels"].update({labels.RUN: value}))
        server.pod_starts(name)
        other = put(api, 9)
        told.after(lambda: server.pod_starts(other), 9)
        assert told.observer.health().up
        assert {run for run, _ in told.calls} <= {8, 9}


# --- watches that go wrong


def test_silence_is_noticed_and_left(server: FakeApiServer, api: Api) -> None:
    server.bookmark_s = 3600
    name = put(api, RUN)
    with Told(observer(api, QUIET)).watching() as told:
        wait_until(lambda: server.count("GET", POD_WATCH) >= 2)
        told.after(lambda: server.pod_starts(name))
    assert server.count("GET", POD_LIST) >= 2, "who answers after a silence may know less: it lists"


def test_bookmarks_keep_an_idle_watch(server: FakeApiServer, api: Api) -> None:
    put(api, RUN)
    # Longer than the machine stalls, and shorter than all the bookmarks take.
    with Told(observer(api, replace(QUIET, silence_s=6.0))).watching() as told:
        for _ in range(16):
            server.bookmark()
            time.sleep(0.5)
        assert told.observer.health().up
        assert server.count("GET", WATCH) == 2


def test_a_watch_whose_head_does_not_come_is_left(server: FakeApiServer, api: Api) -> None:
    server.faults.add("GET", POD_WATCH, Silence(600))
    name = put(api, RUN)
    pace: Any = SimpleNamespace(**{**asdict(PACE), "silence_s": 0.5})
    with begun(observer(api, pace)) as told:
        wait_until(lambda: server.count("GET", POD_WATCH))
        pace.silence_s = PACE.silence_s  # the next one has as much time as it needs
        wait_until(lambda: told.observer.health().up)
        told.after(lambda: server.pod_starts(name))
    assert server.count("GET", POD_WATCH) >= 2


ENDLESS: dict[str, Fault] = {
    "ends at once": StreamEnds(0),
    "breaks at once": StreamEnds(0, broken=True),
    "410 in the stream": StreamError(),
    "403": Answer(403),
    "429": throttled(None),
    "garbage": Garbage(b"<html>please log in</html>\n"),
}


@pytest.mark.parametrize("fault", ENDLESS.values(), ids=ENDLESS)
def test_a_watch_that_always_fails_is_asked_for_rarely_and_recovers(
    server: FakeApiServer, api: Api, fault: Fault
) -> None:
    server.bookmark_s = 0.05
    name = put(api, RUN)
    server.pod_starts(name)
    server.faults.add("GET", POD_WATCH, fault, times=None)
    # On no machine does a watch that ends at once last that long.
    seeing = observer(api, replace(PACE, short_s=30))
    with begun(seeing) as told:
        wait_until(lambda: server.count("GET", POD_WATCH) >= 3)
        began, watches, lists = (
            time.monotonic(),
            server.count("GET", POD_WATCH),
            server.count("GET", POD_LIST),
        )
        time.sleep(0.5)
        watches, lists = (
            server.count("GET", POD_WATCH) - watches,
            server.count("GET", POD_LIST) - lists,
        )
        # After the counting: a machine that stalls here asks nothing.
        bound = most(time.monotonic() - began)
        assert watches <= bound
        assert lists <= bound
        wait_until(lambda: seeing.health().problem)
        server.pod_ends(name)
        server.faults.clear()
        wait_until(lambda: seeing.health().up)
        wait_until(lambda: server.count("GET", JOB_WATCH) == 1)
        other = put(api, 8)
        told.after(lambda: server.pod_starts(other), 8)
        assert sum(run == RUN for run, _ in told.calls) >= 2, "its start and its end"
    assert server.count("GET", JOB_LIST) == 1, "the other watch has nothing to do with it"


def test_a_server_that_nobody_reaches_is_tried_at_short_pauses(server: FakeApiServer) -> None:
    over = threading.Event()
    with deaf_port() as port:
        api = patient(
            server, kubeconfig=server.kubeconfig(**{"proxy-url": f"http://127.0.0.1:{port}"})
        )
        pace = replace(PACE, most_s=3600)
        listing = Reflector(api, Pod, api.pods_path(), "", lambda *_: None, lambda *_: None, pace)
        thread = threading.Thread(target=listing.run, args=(over,))
        thread.start()
        try:
            # With pauses that double without a limit: after hours.
            wait_until(lambda: listing.lists >= 16)
            assert "refused" in str(listing.problem)
        finally:
            over.set()
            thread.join()
            api.close()


@pytest.mark.parametrize(
    "fault", [StreamError(), StreamEnds(0, broken=True)], ids=["410", "broken"]
)
def test_what_happens_while_a_watch_is_broken_is_told(
    server: FakeApiServer, api: Api, fault: Fault
) -> None:
    names = [put(api, run_id) for run_id in (1, 2, 3)]
    for name in names:
        server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        level(told, server)
        server.faults.add("GET", POD_WATCH, fault, times=3)
        server.end_watches()
        told.calls.clear()
        server.pod_ends(names[0], 1)
        server.delete_behind(names[1])
        wait_until(lambda: {run for run, _ in told.calls} >= {1, 2})
        assert {run for run, _ in told.calls} == {1, 2}


def test_a_place_that_is_forgotten_leads_to_one_list(server: FakeApiServer, api: Api) -> None:
    names = [put(api, run_id) for run_id in (1, 2)]
    with Told(observer(api)).watching() as told:
        level(told, server)
        told.calls.clear()
        with server.store.changed:  # all of it between two watches
            server.end_watches()
            for name in names:
                server.pod_starts(name)
            server.delete_pod_behind(names[1])
            server.store.compact()
        wait_until(lambda: {run for run, _ in told.calls} >= {1, 2})
        wait_until(lambda: told.observer.health().up)
        assert server.count("GET", POD_LIST) == 2


def test_a_watch_that_ends_in_order_is_followed_by_another_without_a_list(
    server: FakeApiServer, api: Api
) -> None:
    name = put(api, RUN)
    with Told(observer(api)).watching() as told:
        time.sleep(PACE.short_s)
        server.end_watches()
        wait_until(lambda: server.count("GET", WATCH) == 4)
        told.after(lambda: server.pod_starts(name))
        assert told.observer.health().up
    assert server.count("GET", POD_LIST) == 1


def test_now_and_then_there_is_a_list_anyway(server: FakeApiServer, api: Api) -> None:
    name = put(api, RUN)
    server.pod_starts(name)
    with Told(observer(api, replace(PACE, list_s=0.2))).watching() as told:
        level(told, server)
        # What no watch reported, as after a fault in the server's cache, or in ours.
        server.store.after_write.clear()
        told.observer._session._changes._pods.clear()  # type: ignore[attr-defined]
        time.sleep(0.2)
        told.after(server.end_watches)
    assert server.count("GET", POD_LIST) == 2


def test_a_server_that_was_restored_is_believed(server: FakeApiServer, api: Api) -> None:
    """Resource versions go back, and what was created since then no longer exists."""
    old = put(api, 1)
    server.pod_starts(old)
    version = server.store.version
    with Told(observer(api)).watching() as told:
        new = put(api, 2)
        told.after(lambda: server.pod_starts(new), 2)
        told.after(lambda: server.pod_ends(old), 1)
        told.calls.clear()
        server.store.restore(version)
        server.drop_connections()
        wait_until(lambda: {run for run, _ in told.calls} >= {1, 2})
        wait_until(lambda: told.observer.health().up)
        told.after(lambda: server.pod_ends(old), 1)


# --- lists that go wrong

BAD_LISTS: dict[str, Fault] = {
    "cut": Cut(300),
    "items: null and no version": Garbage(
        b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}'
    ),
    "401": Answer(401),
    "410": Answer(410),
    "429": throttled(None),
}


@pytest.mark.parametrize("fault", BAD_LISTS.values(), ids=BAD_LISTS)
def test_a_list_that_is_not_complete_says_nothing(
    server: FakeApiServer, api: Api, fault: Fault
) -> None:
    names = [put(api, run_id) for run_id in (1, 2, 3)]
    for name in names:
        server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        level(told, server)
        server.faults.add("GET", POD_LIST, fault, times=None)
        server.faults.add("GET", POD_WATCH, StreamError())
        told.after(lambda: server.delete_pod_behind(names[2]), 3)
        level(told, server)
        told.calls.clear()
        server.end_watches()
        wait_until(lambda: not told.observer.health().up)
        wait_until(lambda: reflectors(told)[0].lists >= 4)
        assert told.observer.health().problem
        server.faults.clear()
        wait_until(lambda: told.observer.health().up)
        assert told.calls == [], "nobody vanished because a list was cut"
        told.after(lambda: server.pod_ends(names[0]), 1)
        lists = reflectors(told)[0].lists
    # A list of two versions begins again within the same try, three times; everything else is one
    # request per try.
    each = {"410": 3, "401": 2}.get(str(getattr(fault, "status", "")), 1)
    assert lists <= server.count("GET", POD_LIST) <= each * lists


@pytest.mark.parametrize("writes", [1, 12])
def test_a_stale_list_costs_polls_and_never_a_change(
    server: FakeApiServer, api: Api, writes: int
) -> None:
    names = [put(api, run_id) for run_id in (1, 2, 3)]
    for name in names:
        server.pod_starts(name)
    with Told(observer(api)).watching() as told:
        level(told, server)
        server.faults.add("GET", POD_LIST, Stale(writes))
        server.faults.add("GET", POD_WATCH, StreamError())
        told.calls.clear()
        with server.store.changed:
            server.end_watches()
            server.pod_ends(names[0])
            server.delete_behind(names[1])
            server.change_pod(names[2], lambda pod: pod["status"].update(podIP="10.1.2.3"))
        wait_until(lambda: {run for run, _ in told.calls} >= {1, 2})
        wait_until(lambda: told.observer.health().up)
        told.after(lambda: server.pod_ends(names[2]), 3)
        wait_until(lambda: told.observer.health().watched == 0)


def test_the_server_says_when_it_may_be_asked_again(server: FakeApiServer, api: Api) -> None:
    server.faults.add("GET", POD_LIST, throttled("1"))
    server.faults.add("GET", POD_WATCH, throttled("1"))
    with Told(observer(api)).watching():
        pass
    asked = [request for request in server.requests if re.search(PODS, request.target)]
    assert [bool(request.query.get("watch")) for request in asked] == [False, False, True, True]
    gaps = [later.at - earlier.at for earlier, later in pairwise(asked)]
    assert gaps[0] >= 1.0
    assert gaps[2] >= 1.0


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_right_that_is_missing_is_named(server: FakeApiServer, api: Api, verb: str) -> None:
    server.deny(verb, "pods")
    seeing = observer(api)
    with begun(seeing):
        wait_until(lambda: f"needs permission to {verb} pods" in str(seeing.health().problem))
        assert not seeing.health().up
        server.allow(verb, "pods")
        wait_until(lambda: seeing.health().up)


def test_a_token_that_is_refused_is_a_reason_to_wait(server: FakeApiServer, api: Api) -> None:
    name = put(api, RUN)
    with Told(observer(api)).watching() as told:
        server.tokens = {"another"}
        server.drop_connections()
        wait_until(lambda: "rejected our credentials" in str(told.observer.health().problem))
        server.tokens = None
        wait_until(lambda: told.observer.health().up)
        told.after(lambda: server.pod_starts(name))


# --- leaving


@pytest.mark.parametrize("when", ["watching", "waiting", "unanswered"])
def test_it_leaves_at_once_whatever_it_waits_for(
    server: FakeApiServer, api: Api, when: str
) -> None:
    if when == "waiting":
        server.faults.add("GET", "", throttled("60"), times=None)
    if when == "unanswered":
        server.faults.add("GET", WATCH, Silence(600), times=None)
    seeing, over = observer(api), threading.Event()
    thread = threading.Thread(target=seeing.watch, args=(Told(seeing), over))
    thread.start()
    wait_until(lambda: server.count("GET", POD_LIST if when == "waiting" else POD_WATCH) >= 1)
    over.set()
    thread.join(30)  # half of the requested time
    assert not thread.is_alive()
    assert not seeing.health().up
