"""Which changes need a poll, and that none is missed, whatever a watch omits, repeats or reports
late.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod
from crawler_lifecycle.clusters.kubernetes.observer.changes import (
    ENDING,
    OVER,
    PENDING,
    RUNNING,
    WAITING,
    Changes,
    ObjectState,
    TaskKey,
    seen,
)
from tests.support.examples import examples

RUN, LONG = (7, (0, 1)), 3.0
OTHER = (8, (0, 1))
FRESH, STUCK = seen(RUN, PENDING, job="j"), seen(RUN, WAITING, "Unschedulable", "j")
ALIVE, DEAD = seen(RUN, RUNNING, job="j"), seen(RUN, OVER, job="j")
JOB, FAILED = seen(RUN, PENDING), seen(RUN, OVER)


def test_a_usual_life_is_told_twice() -> None:
    changes = Changes(LONG)
    told = [
        *changes.job("j", JOB, 0),
        *changes.pod("p", FRESH, 0.1),
        *changes.pod("p", ALIVE, 0.5),
        *changes.slow(10),
        *changes.pod("p", DEAD, 20),
        *changes.job("j", seen(RUN, ENDING), 21),
        *changes.job("j", FAILED, 22),
        *changes.pod("p", None, 23),
        *changes.job("j", None, 23),
    ]
    assert told == [RUN, RUN]
    assert len(changes) == changes.watched == 0
    assert vars(changes) | {"_long_s": 0} == vars(Changes()) | {"_long_s": 0}, (
        "something is kept for ever"
    )


@pytest.mark.parametrize(("before", "after", "told"), [
    (FRESH, STUCK, True),
    (STUCK, seen(RUN, WAITING, "image", "j"), True),
    (STUCK, STUCK, False),
    (ALIVE, seen(RUN, RUNNING, "deleted", "j"), True),
    (ALIVE, seen(RUN, ENDING, job="j"), True),
    (seen(RUN, ENDING, job="j"), DEAD, True),
    (DEAD, seen(RUN, OVER, "deleted", "j"), False),
    (FRESH, seen(RUN, PENDING, "deleted", "j"), True),
])  # fmt: skip
def test_what_is_worth_a_poll(before: ObjectState, after: ObjectState, told: bool) -> None:
    changes = Changes(LONG)
    changes.pod("p", before, 0)
    assert changes.pod("p", after, 1) == ({RUN} if told else set())


def test_what_waits_for_long_without_a_word_is_told_once() -> None:
    changes = Changes(LONG)
    assert changes.job("nobody makes its pod", JOB, 0) == set()
    assert changes.job("has a pod", JOB, 0) == set()
    assert changes.pod("p", seen(OTHER, PENDING, job="has a pod"), 1) == set()
    assert changes.slow(LONG - 0.1) == set()
    assert changes.slow(LONG) == {RUN}
    assert changes.slow(LONG + 1) == {OTHER}
    assert changes.slow(100) == set()


def test_a_list_tells_what_is_gone() -> None:
    changes = Changes(LONG)
    changes.listed(
        Pod,
        {"a": ALIVE, "b": seen(OTHER, RUNNING, job="k"), "c": seen((9, None), OVER, job="l")},
        0,
    )
    assert changes.listed(Pod, {"b": seen(OTHER, RUNNING, job="k")}, 1) == {RUN}
    assert changes.listed(Pod, {"b": seen(OTHER, RUNNING, job="k")}, 2) == set()
    assert changes.watched == 1


def test_a_change_says_whose_it_is_as_far_as_the_labels_say() -> None:
    changes = Changes(LONG)
    changes.pod("p", ALIVE, 0)
    assert changes.pod("p", seen((7, None), OVER, job="j"), 1) == {(7, None)}
    changes.pod("q", ALIVE, 2)
    assert changes.pod("q", None, 3) == {RUN}, "the labels of what was removed are remembered"


def test_a_job_speaks_where_no_pod_does() -> None:
    changes = Changes(LONG)
    changes.job("j", JOB, 0)
    assert changes.job("j", seen(RUN, WAITING, "suspended"), 1) == {RUN}
    assert changes.job("j", seen(RUN, ENDING), 2) == {RUN}, "its deadline"
    assert changes.job("j", FAILED, 2) == {RUN}
    assert changes.job("j", None, 23) == set(), "nothing that was not told with its end"
    changes.job("k", JOB, 0)
    assert changes.job("k", None, 23) == {RUN}


# --- any life, as a bad watch tells it ------------------------------------------------------------

#: How an object progresses: a stage never returns, and a reason to wait is different each time.
LIFE = [
    (PENDING, ""),
    (WAITING, "{}"),
    (RUNNING, ""),
    (RUNNING, "deleted"),
    (ENDING, ""),
    (OVER, ""),
    None,
]
STEP = st.tuples(
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["tell", "wait", "again", "cut"]),
)


class Story:
    """What is true, what the observer was told, and what the resulting polls saw."""

    def __init__(self) -> None:
        self.changes = Changes(LONG)
        self.now = 0
        self.true: dict[str, ObjectState] = {}
        self.polled: dict[str, ObjectState] = {}
        self.places: dict[tuple[str, int], tuple[int, int]] = {}
        self.coming: list[tuple[str, ObjectState | None]] = []
        self.told: list[tuple[str, ObjectState | None]] = []

    def step(self, kind: str, number: int, ahead: int, fate: str) -> None:
        """One object changes. The watch reports this at once, later, again together with earlier
        events, or never; a list follows a watch that was cut off.
        """
        self.now += 1
        place, life = self.places.get((kind, number), (-1, 0))
        place = max(0, place + ahead)
        place, life = (0, life + 1) if place >= len(LIFE) else (place, life)
        self.places[kind, number] = (place, life)
        if (stage := LIFE[place]) is None or (life and not place):
            for old in [uid for uid in self.true if uid.startswith(f"{kind} {number} ")]:
                del self.true[old]
                self.coming.append((old, None))
        if stage is not None:
            uid = f"{kind} {number} {life}"
            owner = f"job {number} 0" if kind == "pod" else ""
            self.true[uid] = seen((7, (number, 1)), stage[0], stage[1].format(self.now), owner)
            self.coming.append((uid, self.true[uid]))
        if fate == "cut":
            self.coming, self.told = [], []
            self.lists()
        elif fate != "wait":
            again = self.told[-4:] if fate == "again" else []
            self.told += self.coming
            self.coming, coming = [], again + self.coming
            for uid, state in coming:
                self._poll(self._deliver(uid, state))

    def _deliver(self, uid: str, state: ObjectState | None) -> set[TaskKey]:
        return self.changes.one(Pod if uid.startswith("pod") else Job, uid, state, self.now)

    def _poll(self, tasks: set[TaskKey]) -> None:
        self.polled = {uid: state for uid, state in self.polled.items() if state.key not in tasks}
        self.polled |= {uid: state for uid, state in self.true.items() if state.key in tasks}

    def lists(self) -> None:
        for name, kind in (("pod", Pod), ("job", Job)):
            there = {uid: state for uid, state in self.true.items() if uid.startswith(name)}
            self._poll(self.changes.listed(kind, there, self.now))

    def rest(self) -> None:
        """Let time pass until the next list."""
        self.lists()
        self.now += int(LONG) + 1
        self._poll(self.changes.slow(self.now))

    def unseen(self, kind: str) -> list[tuple[str, ObjectState | None, ObjectState | None]]:
        """Return what no poll has seen in its present state. An end needs to be seen only once."""
        found = []
        for uid in {uid for uid in (*self.true, *self.polled) if uid.startswith(kind)}:
            true, polled = self.true.get(uid), self.polled.get(uid)
            ended = (
                polled is not None and polled.stage == OVER and (true is None or true.stage == OVER)
            )
            if true != polled and not ended:
                found.append((uid, true, polled))
        return found


@settings(max_examples=examples(400))
@given(st.lists(STEP, max_size=40))
def test_at_rest_every_change_has_been_told(steps: list[Any]) -> None:
    story = Story()
    for is_pod, *step in steps:
        story.step("pod" if is_pod else "job", *step)
    story.rest()
    assert story.unseen("pod") == []
    before = dict(story.polled)
    story.polled = {}
    story.lists()
    assert story.polled == {}, f"a list that shows nothing new tells nothing: {before}"


@settings(max_examples=examples(200))
@given(st.lists(STEP, max_size=40))
def test_jobs_without_pods_are_told_as_well(steps: list[Any]) -> None:
    story = Story()
    for _, *step in steps:
        story.step("job", *step)
    story.rest()
    assert story.unseen("job") == []
