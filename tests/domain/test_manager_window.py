"""The window of a manager's cycle, compared with a plain model whose lists are searched from the
start for each slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.features.managers.domain import window as manager_window
from crawler_lifecycle.features.managers.domain.manager import (
    AddedJob,
    EndedJob,
    Facts,
    Job,
    JobState,
    Live,
    Waiting,
)
from crawler_lifecycle.features.managers.domain.window import Rules, Window
from tests.support.examples import examples

NOW = 1000.0
DELAYED, QUEUED, BUFFERED = JobState.DELAYED, JobState.QUEUED, JobState.BUFFERED
STATES = (DELAYED, QUEUED, BUFFERED)


def job(spider: str = "a", key: str = "", willing: bool = True) -> Job:
    return Job(spider, {"key": key, "willing": str(willing)})


@dataclass
class Model:
    """The rules of S-52, S-53 and S-60 in the simplest way."""

    pools: dict[JobState, list[Waiting]]
    slots: int
    spider_cap: int | None
    key_cap: int | None
    delayed_max: int
    spiders: Counter[str]
    keys: Counter[str]
    picked: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def may(self, one: Waiting) -> bool:
        if one.not_before is not None and one.not_before > NOW:
            return False
        if self.spider_cap is not None and self.spiders[one.job.spider] >= self.spider_cap:
            return False
        key = one.job.spider_args["key"]
        if key and self.key_cap is not None and self.keys[key] >= self.key_cap:
            return False
        return one.job.spider_args["willing"] == "True"

    def take(self, state: JobState, one: Waiting) -> None:
        self.pools[state].remove(one)
        self.picked.append(one.item_id)
        self.spiders[one.job.spider] += 1
        self.keys[one.job.spider_args["key"]] += 1

    def slot(self) -> bool:
        for state in (DELAYED, QUEUED):
            for one in self.pools[state]:
                if self.may(one):
                    self.take(state, one)
                    return True
        while self.pools[BUFFERED]:
            one = self.pools[BUFFERED][0]
            if self.may(one):
                self.take(BUFFERED, one)
                return True
            if len(self.pools[DELAYED]) >= self.delayed_max:
                return False
            self.pools[DELAYED].append(self.pools[BUFFERED].pop(0))
            self.moved.append(one.item_id)
        return False

    def cycle(self) -> None:
        while self.slots > 0 and self.slot():
            self.slots -= 1


JOBS = st.builds(job, st.sampled_from("ab"), st.sampled_from(["", "x", "y"]), st.booleans())
PLACES = st.tuples(st.sampled_from(STATES), JOBS, st.sampled_from([None, NOW - 1, NOW + 5]))
CAPS = st.none() | st.integers(0, 3)


@settings(deadline=None, max_examples=examples(300))
@given(
    places=st.lists(PLACES, max_size=14),
    live=st.lists(JOBS, max_size=4),
    cap=st.integers(0, 8),
    spider_cap=CAPS,
    key_cap=CAPS,
    delayed_max=st.integers(0, 4),
)
def test_a_cycle_picks_what_the_plain_model_picks(
    places: list[tuple[JobState, Job, float | None]],
    live: list[Job],
    cap: int,
    spider_cap: int | None,
    key_cap: int | None,
    delayed_max: int,
) -> None:
    """S-22, S-52, S-53, S-57, S-60, S-D5, S-D6: order, limits, the bounded delayed list and the
    numbers.
    """
    pools: dict[JobState, list[Waiting]] = {state: [] for state in STATES}
    for n, (state, one, not_before) in enumerate(places, 1):
        if state is DELAYED and len(pools[DELAYED]) >= delayed_max:
            continue
        pools[state].append(Waiting(n, one, not_before=not_before))
    spiders = Counter(one.spider for one in live)
    keys = Counter(one.spider_args["key"] for one in live if one.spider_args["key"])
    facts = Facts(
        *(1, 1, NOW, 7),
        live=len(live),
        live_by_spider=dict(spiders),
        live_by_key=dict(keys),
        delayed=len(pools[DELAYED]),
        queued=len(pools[QUEUED]),
        buffered=len(pools[BUFFERED]),
        exhausted=True,
    )

    def pool(state: JobState, after: int, limit: int) -> Sequence[Waiting]:
        return [one for one in pools[state] if one.item_id > after][:limit]

    rules = Rules(
        cap,
        may_start=lambda one: one.spider_args["willing"] == "True",
        spider_cap=lambda spider: spider_cap,
        key_of=lambda one: one.spider_args["key"] or None,
        key_cap=lambda key: key_cap,
    )
    copies = {state: list(rows) for state, rows in pools.items()}
    model = Model(
        copies, cap - len(live), spider_cap, key_cap, delayed_max, spiders.copy(), keys.copy()
    )
    model.cycle()
    with mock.patch.multiple(manager_window, DELAYED_MAX=delayed_max, _POOL_PAGE=2):
        window = Window(facts, pool)
        while (waiting := window.reserve(rules)) is not None:
            window.pick(waiting, window.number(), waiting.job)
        again = window.reserve(rules)

    assert [one.item_id for one in window.picked] == model.picked
    assert list(window.delayed) == model.moved
    assert [one.seq for one in window.picked] == list(range(7, 7 + len(model.picked)))
    assert again is None
    assert window.live <= max(cap, len(live))
    assert window.live_by_spider == +(
        spiders + Counter(_job(places, one).spider for one in model.picked)
    )
    assert window.waiting == sum(map(len, copies.values()))
    assert window.over == (not window.live and not window.waiting)
    assert (window.sentence(cap) is None) == window.over


def _job(places: list[tuple[JobState, Job, float | None]], item_id: int) -> Job:
    return places[item_id - 1][1]


def _window(facts: Facts, **pools: list[Waiting]) -> Window:
    rows = {state: pools.get(state.value, []) for state in JobState}
    return Window(
        facts,
        lambda state, after, limit: [one for one in rows[state] if one.item_id > after][:limit],
    )


def _facts(**more: object) -> Facts:
    return Facts(1, 1, NOW, 1, **{"exhausted": True, **more})  # type: ignore[arg-type]


def test_jobs_of_this_cycle_queue_behind_the_rows() -> None:
    """S-53: first in, first out, across cycles."""
    window = _window(
        _facts(queued=1, buffered=1), queued=[Waiting(1, job())], buffered=[Waiting(2, job())]
    )
    new = window.add(AddedJob(0, job("new")))
    order = []
    while (waiting := window.reserve(Rules(9))) is not None:
        order.append(waiting.item_id)
    assert order == [1, new.ref, 2]


def test_a_person_s_cap_goes_before_that_of_the_class_and_a_pause_before_both() -> None:
    assert _window(_facts(cap=1)).free(5) == 1
    assert _window(_facts(cap=9, live=2)).free(5) == 7
    assert _window(_facts(live=7)).free(5) == 0, "a shrunk cap picks nothing, and ends nothing"
    assert _window(_facts(cap=9, paused=True)).free(5) == 0
    assert _window(_facts(source_error="position 3: …")).free(5) == 5, (
        "what was read before it runs"
    )


def test_the_next_cycle_comes_when_there_is_something_to_do() -> None:
    many = _window(
        _facts(
            ended=[ended := EndedJob(Live(1, "k", job(), 1), 1, False, "finished", True)],
            more_ended=True,
        )
    )
    assert many.again_s(1) is None, "a class that handles no end must not spin"
    many.ended(ended)
    assert many.again_s(1) == 0
    reading = _window(_facts(exhausted=False, buffered=1), buffered=[Waiting(1, job())])
    assert reading.again_s(2) is None, "nothing went on, so it must not spin"
    assert (reading.reserve(Rules(2, may_start=lambda one: False)), reading.delayed) == (None, [1])
    assert reading.again_s(2) == 0, "more of the source may fill the slot"
    assert reading.again_s(0) is None
    window = _window(
        _facts(queued=2), queued=[Waiting(1, job(), not_before=NOW + n) for n in (9, 4)]
    )
    assert window.reserve(Rules(5)) is None
    assert window.again_s(5) == 4
    assert window.sentence(5) == "2 jobs are waiting: the delay of a retry has not elapsed yet"


def test_it_says_what_it_waits_for() -> None:
    full = _window(_facts(live=2, queued=1))
    assert full.sentence(2) == "all 2 slots are taken"
    assert full.sentence(0) == "its cap is 0: no job may start"
    assert _window(_facts(paused=True, queued=1)).sentence(2) == "somebody paused it"
    assert _window(_facts(exhausted=False)).sentence(2) == "its source is being read"
    assert _window(_facts(live=1)).sentence(2) == "1 job is live, and none is waiting"
    window = _window(
        _facts(live_by_spider={"a": 1}, live=1, queued=1), queued=[Waiting(1, job("a"))]
    )
    window.reserve(Rules(5, spider_cap=lambda spider: 1))
    assert window.sentence(5) == "1 job is waiting: spider a has its maximum of 1 live job"
