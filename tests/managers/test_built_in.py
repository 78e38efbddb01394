"""The manager without a class: one run of a crawler for each job from outside."""

from __future__ import annotations

import pytest

from crawler_lifecycle.features.managers.domain.manager import BUILT_IN, Job
from crawler_lifecycle.managers.built_in import RunEach
from crawler_lifecycle.managers.testing import Simulation, simulate
from crawler_lifecycle.managers.types import ClassError
from tests.managers.support import numbers, order


def _jobs(*pages: int, **args: str) -> list[Job]:
    return [Job("shops", {"page": str(page), **args}) for page in pages]


def test_its_name_is_that_which_the_gateway_gives() -> None:
    assert f"{RunEach.__module__}:{RunEach.__name__}" == BUILT_IN


def test_it_waits_for_jobs_until_it_is_told_that_no_more_will_come() -> None:
    simulation = Simulation(
        RunEach, ["shops", "--max-running-jobs", "2", "--spider-args", '{"env": "prod"}']
    )
    record = simulation.run(cycles=3)
    assert (record.scheduled, record.over) == ([], False)
    assert record.waits == ["it is waiting for jobs, or for a report that no more jobs will come"]
    assert simulation.add_jobs(_jobs(1, 2, 2, 3)) == 3
    record = simulation.run(cycles=9)
    assert (order(record), record.most_live, record.over) == (["1", "2", "3"], 2, False)
    assert {job.spider_args["env"] for job in record.scheduled} == {"prod"}
    simulation.add_jobs(_jobs(3, 4), seal=True)
    record = simulation.run()
    assert (order(record), record.over, record.failed) == (["1", "2", "3", "4"], True, False)


def test_its_options_cap_each_key_and_retry() -> None:
    argv = ["shops", "--max-per-key", "domain=1", "--retries", "1", "--retry-delay", "30"]
    simulation = Simulation(RunEach, argv, outcomes={3: "failed"})
    simulation.add_jobs([*_jobs(1, 2, domain="a"), *_jobs(3), *_jobs(4, domain="b")], seal=True)
    record = simulation.run()
    assert [(job.spider_args["page"], job.at) for job in record.scheduled] == [
        *[("1", 0), ("3", 0), ("4", 0), ("2", 60), ("4", 90)]
    ]
    assert numbers(record)[-1] == "3.r1"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "the following arguments are required: spider"),
        (["shops", "--max-per-key", "domain"], "give an argument and a number, such as domain=2"),
        (["shops", "--max-per-key", "domain=0"], "give an argument and a number"),
        (["shops", "--retries", "-1"], "whole number from 0 to 1000"),
        (["shops", "--retry-delay", "nan"], "--retry-delay: nan is not allowed"),
    ],
)
def test_options_that_cannot_be(argv: list[str], text: str) -> None:
    with pytest.raises(ClassError, match=text):
        simulate(RunEach, argv)
