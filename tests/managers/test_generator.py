"""``GeneratorCrawlManager``: rows S-50 … S-64 of the rules of managers, and S-22."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.features.managers.domain.manager import Job
from crawler_lifecycle.managers import (
    AsyncSchedulerCrawlManagerMixin,
    GeneratorCrawlManager,
    JobParams,
    StopRetry,
)
from crawler_lifecycle.managers.testing import Record, Scheduled, Simulation, simulate
from tests.managers.support import generator, numbers, order, pages, tag
from tests.support.examples import examples


def test_s50_keys_of_a_yield_are_taken_out_and_the_rest_are_arguments() -> None:
    """This includes ``spider_args``, which the original drops; ``None`` omits a name."""
    given = {
        **{
            "spider": "other",
            "units": 2,
            "tags": ["A=1"],
            "job_settings": {"X": True},
            "project_id": 17,
        },
        **{
            "page": 1,
            "deep": {"b": [1, None], "a": "ä"},
            "none": None,
            "yes": True,
            "spider_args": {"page": 2},
        },
    }
    job = simulate(generator([given])).scheduled[0]
    assert job.spider_args == {"page": "2", "deep": '{"a": "ä", "b": [1, null]}', "yes": "True"}
    assert (job.spider, job.units, job.project_id, job.job_settings) == (
        "other",
        2,
        "17",
        {"X": "True"},
    )
    assert tag(job.tags, "A") == ["1"]


def test_s51_where_the_spider_of_a_job_comes_from() -> None:
    both = [{"page": 1}, {"page": 2, "spider": "other"}]
    assert [job.spider for job in simulate(generator(both)).scheduled] == ["shops", "other"]
    required = simulate(generator([both[1], both[0]], spider=""))
    assert [job.spider for job in required.scheduled] == ["other"]
    assert required.failed
    named = simulate(generator(both, spider=None), ["positional"])
    assert [job.spider for job in named.scheduled] == ["positional", "other"]


def test_s52_a_freed_slot_is_used_in_the_same_cycle() -> None:
    record = simulate(generator(pages(*range(7)), default_max_jobs=3))
    assert [job.at for job in record.scheduled] == [0, 0, 0, 60, 60, 60, 120]
    assert record.most_live == 3


class Sources(GeneratorCrawlManager):
    """Jobs of all three sources: pages 1 and 2 wait as delayed, 90 and 91 are added."""

    name, loop_mode, spider, default_max_jobs = "sources", 60, "shops", 1
    held = True

    def set_parameters_gen(self) -> Iterator[dict[str, Any]]:
        yield from pages(1, 2, 3, 4, 5)

    def can_schedule_job_with_params(self, params: Any) -> bool:
        return params["spider_args"]["page"] not in (("1", "2", "91") if self.held else ())

    def finished_ok_hook(
        self, spider: str, outcome: str, job_args_override: JobParams, jobkey: str
    ) -> None:
        if job_args_override["spider_args"]["page"] == "3":
            for page in ("91", "90"):
                self.add_job("shops", {"spider_args": {"page": page}})
        if job_args_override["spider_args"]["page"] == "90":
            self.held = False


def test_s53_delayed_jobs_go_first_then_added_ones_then_the_generator() -> None:
    """A generator's item that may not start is delayed; an added one stays where it is, and lets
    others pass.
    """
    simulation = Simulation(Sources)
    record = simulation.run(until=lambda record: "90" in order(record))
    assert order(record) == ["3", "90"]
    assert [
        row.state for row in simulation.rows if row.job.spider_args["page"] in ("1", "2", "91")
    ] == [*("delayed", "delayed", "queued")]
    assert order(simulation.run()) == ["3", "90", "1", "2", "91", "4", "5"]


@pytest.mark.parametrize(
    ("second", "same"),
    [
        ({"page": "1"}, True),
        ({"page": 1, "units": 2, "tags": ["B"], "job_settings": {"X": 1}, "project_id": 5}, True),
        ({"page": 1, "none": None}, True),
        ({"page": 1, "spider": "shops"}, True),
        ({"page": 1, "spider": "other"}, False),
        ({"page": "01"}, False),
        ({"page": 1, "x": ""}, False),
    ],
)
def test_s54_a_job_is_its_spider_and_its_arguments(second: dict[str, Any], same: bool) -> None:
    record = simulate(generator([{"page": 1}, second]))
    assert len(record.scheduled) == (1 if same else 2)
    assert [position for position, why in record.skipped] == ([2] if same else [])


def test_s55_a_dupe_filter_of_the_class_has_no_effect() -> None:
    """Identities are exact, so nothing is lost to a false positive."""

    class Everything:
        def __contains__(self, item: object) -> bool:
            return True

    cls = generator(pages(1, 1, 2), create_dupe_filter=classmethod(lambda cls: Everything()))
    assert order(simulate(cls)) == ["1", "2"]


def test_s56_an_added_job_with_known_arguments_is_left_out() -> None:
    """Compared with the generator's and with other added jobs; the retry of a job is distinguished
    by its ``retry_num``.
    """

    def on_start(self: GeneratorCrawlManager) -> None:
        for page in (7, 7, 1):
            self.add_job("shops", {"spider_args": {"page": str(page)}})

    def finished_ok_hook(self: GeneratorCrawlManager, *job: Any) -> None:
        self.add_job("shops", {"spider_args": {"page": "2"}})

    record = simulate(generator(pages(1, 2), on_start=on_start, finished_ok_hook=finished_ok_hook))
    assert sorted(order(record)) == ["1", "2", "7"]
    assert record.stats["crawlmanager/duplicates"] == 4


def test_s57_numbers_follow_the_order_of_scheduling() -> None:
    """Ten digits from 1; a known job uses none; a delayed job gets its number when it starts."""
    cls = generator(
        pages(1, 1, 2, 3),
        default_max_jobs=1,
        can_schedule_job_with_params=lambda self, params: (
            params["spider_args"]["page"] != "1" or bool(self.state)
        ),
        finished_ok_hook=lambda self, *job: self.state.update(done=True),
    )
    record = simulate(cls)
    assert order(record) == ["2", "1", "3"]
    assert [tag(job.tags, "JOBSEQ") for job in record.scheduled] == [
        ["0000000001"],
        ["0000000002"],
        ["0000000003"],
    ]


def test_s57_a_job_that_is_added_again_keeps_its_number() -> None:
    """``.r1`` and ``.r2`` come from its own tag."""

    def bad_outcome_hook(
        self: GeneratorCrawlManager, spider: str, outcome: str, params: JobParams, key: str
    ) -> None:
        params["spider_args"]["again"] = params["spider_args"].get("again", "") + "x"
        if len(params["spider_args"]["again"]) < 3:
            self.add_job(spider, params)

    record = simulate(
        generator(pages(1, 2), bad_outcome_hook=bad_outcome_hook), outcomes={2: "failed"}
    )
    assert numbers(record) == ["1", "2", "2.r1", "2.r2"]
    assert [tag(job.tags, "JOBSEQ")[0] for job in record.scheduled[2:]] == [
        "0000000002.r1",
        "0000000002.r2",
    ]


def test_s58_a_failed_job_is_tried_again() -> None:
    record = simulate(generator(pages(1), MAX_RETRIES=2), outcomes="memusage_exceeded")
    assert [job.spider_args.get("retry_num") for job in record.scheduled] == [None, "1", "2"]
    assert numbers(record) == ["1", "1.r1", "1.r2"]
    keys = [job.key for job in record.scheduled]
    assert [tag(job.tags, "RETRIED_FROM") for job in record.scheduled] == [[], keys[:1], keys[1:2]]


@pytest.mark.parametrize(
    ("outcome", "tries"),
    [
        *[
            ("cancelled", 1),
            ("cancelled (stalled)", 2),
            ("cancel_timeout", 1),
            ("killed by oom", 2),
            ("failed", 2),
        ],
        *[("deploy_failed", 1), ("lost", 2), ("finished", 1), ("my_own_reason", 1)],
    ],
)
def test_s58_which_outcomes_are_tried_again(outcome: str, tries: int) -> None:
    """Jobs that a person or we ended are not retried; every other failure is, including ours."""
    assert len(simulate(generator(pages(1), MAX_RETRIES=1), outcomes=outcome).scheduled) == tries


def test_s58_by_default_nothing_is_tried_again() -> None:
    assert len(simulate(generator(pages(1)), outcomes="failed").scheduled) == 1


def test_s59_what_changes_for_a_retry() -> None:
    seen: list[Any] = []

    def get_retry_override(
        self: Any, spider: str, outcome: str, params: JobParams, key: str
    ) -> JobParams:
        seen.append((spider, outcome, params["spider_args"]["retry_num"], key))
        return cast(JobParams, change)

    change = {
        "tags": ["A=1", "B=2"],
        "spider_args": {"slow": 1},
        "job_settings": {"DELAY": 5},
        "units": 3,
    }
    given = {"page": 1, "tags": ["A=1"], "job_settings": {"KEEP": "x"}, "units": 1}
    record = simulate(
        generator([given], MAX_RETRIES=1, get_retry_override=get_retry_override), outcomes="failed"
    )
    first, second = record.scheduled
    assert seen == [("shops", "failed", "1", first.key)]
    assert second.spider_args == {"page": "1", "retry_num": "1", "slow": "1"}
    assert second.job_settings == {"KEEP": "x", "DELAY": "5"}
    assert (second.units, tag(second.tags, "A"), tag(second.tags, "B")) == (3, ["1"], ["2"])


def test_s59_stop_retry_ends_the_tries_of_that_job_only() -> None:
    def get_retry_override(
        self: Any, spider: str, outcome: str, params: JobParams, key: str
    ) -> JobParams:
        if params["spider_args"]["page"] == "1":
            raise StopRetry("no use")
        return {}

    record = simulate(
        generator(pages(1, 2), MAX_RETRIES=2, get_retry_override=get_retry_override),
        outcomes="failed",
    )
    assert numbers(record) == ["1", "2", "2.r1", "2.r2"]
    assert record.errors == []


def test_retries_wait_longer_and_longer() -> None:
    """The delay, its factor and its maximum; the manager lives until they are due (S-D4)."""
    cls = generator(
        pages(1), MAX_RETRIES=4, retry_delay=100, retry_delay_factor=3, retry_delay_max=500
    )
    record = simulate(cls, outcomes="failed", seconds=10)
    ends = [job.at + 10 for job in record.scheduled]
    assert [job.at - end for job, end in zip(record.scheduled[1:], ends, strict=False)] == [
        100,
        300,
        500,
        500,
    ]
    assert "1 job is waiting: the delay of a retry has not elapsed yet" in record.waits


def test_s60_helpers_of_the_predicate() -> None:
    """Counts are consistent within a cycle, and results are copies."""
    seen: list[Any] = []

    def can_schedule_job_with_params(self: GeneratorCrawlManager, params: Any) -> bool:
        params["spider_args"]["page"] = "spoilt"
        return self.spider_running_count(params["spider"]) < 1

    def finished_ok_hook(self: GeneratorCrawlManager, *job: Any) -> None:
        delayed = self.get_delayed_jobs()
        seen.append(
            (self.spider_delayed_count("a"), self.get_delayed_spiders(), self.get_running_spiders())
        )
        for one in delayed:
            one["spider_args"]["page"] = "spoilt"

    items = [{"spider": "a", "page": 1}, {"spider": "a", "page": 2}, {"spider": "b", "page": 3}]
    cls = generator(
        items,
        can_schedule_job_with_params=can_schedule_job_with_params,
        finished_ok_hook=finished_ok_hook,
    )
    record = simulate(cls)
    assert order(record) == ["1", "3", "2"]
    assert seen[0] == (1, {"a"}, {"b"})


@pytest.mark.parametrize("base", [GeneratorCrawlManager, AsyncSchedulerCrawlManagerMixin])
def test_s60_a_predicate_finds_the_jobs_that_its_cycle_has_scheduled(
    base: type[GeneratorCrawlManager],
) -> None:
    """They are pending, in every list and by their key, until their runs exist."""
    states: list[Any] = []

    class Alone(base):  # type: ignore[misc, valid-type]
        name, loop_mode, spider = "alone", 60, "shops"

        def set_parameters_gen(self) -> Any:
            yield from pages(1, 2, 3)

        def can_schedule_job_with_params(self, params: Any) -> bool:
            found = [*self.get_running_jobs(spider="shops")]
            states.extend(
                (job["state"], self.get_job_metadata(job["key"])["state"]) for job in found
            )
            assert not list(self.get_running_jobs(spider="other"))
            assert not list(
                self.get_owned_jobs(state=["finished", "running"], lacks_tag=["FLOW_ID=x"], count=0)
            )
            return not found

    record = simulate(Alone)
    assert (order(record), record.most_live) == (["1", "2", "3"], 1)
    assert ("pending", "pending") in states


def test_s60_a_job_that_the_class_delays_itself() -> None:
    def on_start(self: GeneratorCrawlManager) -> None:
        self.add_delayed_jobs({"spider": "other", "spider_args": {"page": "9"}})

    assert order(simulate(generator(pages(1), on_start=on_start))) == ["9", "1"]


def test_s61_it_ends_when_nothing_is_left() -> None:
    record = simulate(generator(pages(1, 2)), seconds=100)
    assert (record.over, record.close_reason, record.failed) == (True, "finished", False)
    assert simulate(generator([])).over, "also without any job"
    assert record.seconds == 120 or record.seconds == 100


def test_s62_it_does_not_take_over_the_outcomes_of_its_jobs() -> None:
    record = simulate(generator(pages(1, 2)), outcomes="failed")
    assert (record.close_reason, record.failed) == ("finished", False)


def test_s63_after_a_restart_the_generator_begins_anew_and_known_jobs_are_skipped() -> None:
    """This includes ended jobs, and numbers continue; where the listing changed, new items are
    found.
    """
    items = pages(1, 2, 3)
    simulation = Simulation(generator(lambda: items, default_max_jobs=1))
    simulation.run(until=lambda record: len(record.scheduled) == 2)
    simulation.restart()
    items[:0] = pages(0)
    record = simulation.run()
    assert order(record) == ["1", "2", "3", "0"], (
        "what was read before the restart is on record, and goes first"
    )
    assert numbers(record) == ["1", "2", "3", "4"]
    simulation.resume()
    items += pages(4)
    assert order(simulation.run()) == ["1", "2", "3", "0", "4"]


def _async_of(cls: type[GeneratorCrawlManager], **members: Any) -> type[GeneratorCrawlManager]:
    return type("Async", (AsyncSchedulerCrawlManagerMixin, cls), members)


def test_s64_the_async_mixin_does_the_same() -> None:
    cls = generator(pages(1, 2, 2, 3, 4), default_max_jobs=2, MAX_RETRIES=1)
    plain, mixed = (
        simulate(cls, outcomes={2: "failed"}),
        simulate(_async_of(cls), outcomes={2: "failed"}),
    )
    assert mixed.scheduled == plain.scheduled
    assert (mixed.waits, mixed.close_reason) == (plain.waits, plain.close_reason)


def test_s64_jobs_of_a_cycle_are_scheduled_together() -> None:
    """The code of each may wait for the others, and ``None`` defers its job."""
    under_way = most = 0

    async def schedule_spider_with_jobargs(
        self: Any, params: Any = None, spider: Any = None
    ) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if params["spider_args"]["page"] == "2" and not self.state.get("refused"):
            self.state["refused"] = True
            return None
        return await AsyncSchedulerCrawlManagerMixin.schedule_spider_with_jobargs(
            self, params, spider
        )

    cls = _async_of(
        generator(pages(1, 2, 3)), schedule_spider_with_jobargs=schedule_spider_with_jobargs
    )
    record = simulate(cls)
    assert most == 3
    assert sorted(order(record)) == ["1", "2", "3"]
    assert numbers(record) == ["1", "2", "3"]
    assert record.waits[0] == "1 job is waiting: schedule_spider_with_jobargs returned None"


def test_s22_the_cap_is_read_in_every_cycle_and_may_shrink() -> None:
    caps = iter([3, 1, 1, 2, 2, 2, 2])
    lives: list[int] = []

    def workflow_loop(self: Any) -> Any:
        self.cap = next(caps)
        again = GeneratorCrawlManager.workflow_loop(self)
        lives.append(self._cycle.window.live)
        return again

    members = {"workflow_loop": workflow_loop, "max_running_jobs": property(lambda self: self.cap)}
    seconds = {1: 50.0, 2: 100.0, 3: 150.0}
    record = simulate(
        generator(pages(*range(7)), **members),
        seconds=lambda job: seconds.get(job.seq, 50.0),
        cycles=5,
    )
    assert lives[:4] == [3, 2, 1, 2], "a shrunk cap picks nothing and ends nothing"
    assert record.most_live == 3


def test_caps_of_spiders_and_keys_hold_at_every_instant() -> None:
    items = [{"page": n, "spider": "ab"[n % 2], "domain": "xyz"[n % 3]} for n in range(30)]
    live: list[tuple[float, float, Scheduled]] = []
    cls = generator(
        items,
        max_jobs_per_spider=3,
        max_per_key={"x": 1, "y": 2},
        cap_key=lambda self, params: params["spider_args"]["domain"],
    )

    def seconds(job: Scheduled) -> float:
        length = 10.0 + 7 * (job.seq % 4)
        live.append((job.at, job.at + length, job))
        return length

    record = simulate(cls, seconds=seconds)
    assert len(record.scheduled) == 30
    for begin, _, _ in live:
        now = [job for first, last, job in live if first <= begin < last]
        assert max(sum(job.spider == spider for job in now) for spider in "ab") <= 3
        assert sum(job.spider_args["domain"] == "x" for job in now) <= 1
        assert sum(job.spider_args["domain"] == "y" for job in now) <= 2
    assert any("key x has its maximum of 1 live job" in sentence for sentence in record.waits)


@settings(deadline=None, max_examples=examples(60))
@given(
    given_pages=st.lists(st.integers(0, 12), max_size=25),
    cap=st.integers(1, 5),
    bad=st.sets(st.integers(1, 12), max_size=6),
    retries=st.integers(0, 2),
    restarts=st.sets(st.integers(0, 12), max_size=4),
    refused=st.integers(0, 3),
    lengths=st.integers(1, 5),
)
def test_every_job_runs_exactly_once_and_its_tries(
    given_pages: list[int],
    cap: int,
    bad: set[int],
    retries: int,
    restarts: set[int],
    refused: int,
    lengths: int,
) -> None:
    """S-D1, S-D2, S-D3, S-D10, S-57, S-63 with restarts at any cycle: a plain model says what must
    have run.
    """

    def can_schedule_job_with_params(self: Any, params: Any) -> bool:
        return bool(
            self.spider_running_count("shops") < cap - (refused if self._cycle.window.live else 0)
        )

    cls = generator(
        pages(*given_pages),
        default_max_jobs=cap,
        MAX_RETRIES=retries,
        can_schedule_job_with_params=can_schedule_job_with_params,
    )
    simulation = Simulation(
        cls, outcomes=lambda job: "failed" if int(job.spider_args["page"]) in bad else "finished"
    )
    simulation.seconds = lambda job: 10.0 * (1 + job.seq % lengths)
    record = Record()
    for cycle in range(400):
        if cycle in restarts:
            simulation.restart()
        record = simulation.run(cycles=1)
        if record.over:
            break
    assert record.over
    tries: dict[str, int] = {}
    for page in order(record):
        tries[page] = tries.get(page, 0) + 1
    assert tries == {str(page): 1 + (retries if page in bad else 0) for page in given_pages}
    firsts = [job.seq for job in record.scheduled if not job.retry]
    assert firsts == list(range(1, len(set(given_pages)) + 1))
    assert record.most_live <= cap
    assert record.errors == []


def test_an_endless_generator_is_read_as_far_as_needed() -> None:
    """S-D5: the buffer limits it, even when nothing may start."""
    taken = count()
    cls = generator(lambda: ({"page": next(taken)} for _ in count()), default_max_jobs=2)
    assert len(simulate(cls, cycles=10).scheduled) == 20
    assert next(taken) < 2_600


def test_a_job_from_outside_counts_like_any_other() -> None:
    simulation = Simulation(generator(pages(1, 2), default_max_jobs=1))
    assert simulation.add_jobs([Job("shops", {"page": "2"}), Job("shops", {"page": "5"})]) == 2
    assert order(simulation.run()) == ["2", "5", "1"]
