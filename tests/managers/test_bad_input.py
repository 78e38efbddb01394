"""Mistakes of users' classes: an error names position, value and fix, and a manager neither dies
silently nor spins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from crawler_lifecycle.features.managers.domain.manager import STATS_MAX, Page
from crawler_lifecycle.managers import BaseScript, CrawlManager, GeneratorCrawlManager
from crawler_lifecycle.managers.driver import identity_of, parser_of
from crawler_lifecycle.managers.testing import Simulation, simulate
from crawler_lifecycle.managers.types import ClassError
from tests.managers.support import generator, order, pages


def _deep() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


NO_JOBS = [
    (17, "yield: 17 is not allowed; yield a dictionary"),
    (None, "yield: None is not allowed"),
    (["page"], "yield: ['page'] is not allowed"),
    ({"page": object}, "spider_args.page: <class 'object'> is not allowed; give a string"),
    ({"page": {1, 2}}, "spider_args.page: {1, 2} is not allowed"),
    ({"page": [float("inf")]}, "spider_args.page: [inf] is not allowed"),
    ({"page": b"1"}, "spider_args.page: b'1' is not allowed"),
    ({17: "x"}, "spider_args key: 17 is not allowed; names are strings"),
    ({"": "x"}, "spider_args key: '' is not allowed"),
    ({"page": 1, "spider": 17}, "spider: 17 is not allowed"),
    ({"page": 1, "tags": "A=1"}, "tags: 'A=1' is not allowed; give a list of strings"),
    ({"page": 1, "tags": ["x" * 201]}, "give a string of 1 to 200 characters"),
    (
        {"page": 1, "tags": [str(n) for n in range(47)]},
        "tags: 47 tags are too many; give at most 46",
    ),
    ({"page": 1, "tags": [7]}, "tags[0]: 7 is not allowed"),
    ({"page": 1, "units": "two"}, "units: 'two' is not allowed; give a whole number"),
    ({"page": 1, "units": 0}, "units: 0 is not allowed"),
    ({"page": 1, "units": True}, "units: True is not allowed"),
    ({"page": 1, "priority": 6}, "priority: 6 is not allowed"),
    ({"page": 1, "priority": "high"}, "priority: 'high' is not allowed"),
    ({"page": 1, "pool": "Shop A"}, "pool: 'Shop A' is not allowed; pool names have"),
    ({"page": 1, "job_settings": [1]}, "job_settings: [1] is not allowed; give a dictionary"),
    ({"page": 1, "job_settings": {"X": object()}}, "job_settings.X:"),
    ({"page": 1, "spider_args": "x"}, "spider_args: 'x' is not allowed; give a dictionary"),
    ({"page": 1, "project_id": 1.5}, "project_id: 1.5 is not allowed"),
    ({"page": "x" * 70_000}, "bytes of JSON"),
    ({"page": "a\0b"}, "spider_args.page: 'a\\x00b' is not allowed; leave out NUL characters"),
    ({"page": "\ud800"}, "leave out NUL characters and lone surrogates"),
    ({"page": 1, "tags": ["a\0"]}, "tags[0]: 'a\\x00' is not allowed"),
    ({"x" * 500: object}, "spider_args.xxx"),
    ({"page": threading.Lock()}, "TypeError: cannot pickle"),
    ({"page": _deep()}, "RecursionError"),
]


@pytest.mark.parametrize(("given", "text"), NO_JOBS, ids=[text[:30] for _, text in NO_JOBS])
def test_a_yield_that_cannot_be_a_job_stops_the_manager_or_is_skipped(
    given: Any, text: str
) -> None:
    """By default, earlier jobs run, later ones do not, and the manager fails with the position."""
    simulation = Simulation(generator(lambda: iter([{"page": 1}, given, {"page": 2}])))
    record = simulation.run()
    assert (record.over, record.failed, record.close_reason) == (True, True, "failed")
    assert order(record) == ["1"]
    assert simulation.source_error is not None
    assert simulation.source_error.startswith("position 2: ")
    assert text in simulation.source_error
    assert simulation.source_error in record.errors[-1]
    record = simulate(
        generator(lambda: iter([{"page": 1}, given, {"page": 2}]), on_item_error="skip")
    )
    assert order(record) == ["1", "2"]
    assert [position for position, _ in record.skipped] == [2]
    assert text in record.skipped[0][1]
    assert not record.failed


def test_a_stopped_source_lets_live_jobs_end_and_goes_on_at_a_resume() -> None:
    """Earlier jobs are on record; a generator that was fixed yields the rest."""
    items: list[Any] = [*pages(*range(600)), None, *pages(600)]
    simulation = Simulation(generator(lambda: items, default_max_jobs=2))
    record = simulation.run()
    assert (record.failed, record.over, len(record.scheduled)) == (True, True, 600)
    items[600] = {"page": 99_999}
    simulation.resume()
    assert len(simulation.run().scheduled) == 602


@pytest.mark.parametrize("error", [ZeroDivisionError("listing is gone"), SystemExit(3)])
@pytest.mark.parametrize("on_item_error", ["stop", "skip"])
def test_a_generator_that_raises(error: BaseException, on_item_error: str) -> None:
    def raising() -> Iterator[Any]:
        yield {"page": 1}
        raise error

    record = simulate(generator(raising, on_item_error=on_item_error))
    said = f"position 2: set_parameters_gen failed: {type(error).__name__}: {error} (test_bad_input.py:"
    assert (record.failed, said in record.errors[-1]) == (True, True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (lambda self: None, "returned a NoneType; make it yield"),
        (lambda self: {"page": 1}, "returned a dict; make it yield"),
        (lambda self: "text", "returned a str"),
        (lambda self: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_source_that_is_none(source: Any, text: str) -> None:
    record = simulate(generator(set_parameters_gen=source))
    assert record.failed
    assert text in record.errors[-1]


def test_a_class_without_a_generator() -> None:
    record = simulate(
        type("Bare", (GeneratorCrawlManager,), {"name": "bare", "spider": "s", "loop_mode": 5})
    )
    assert "Bare has no set_parameters_gen; write one" in record.errors[-1]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--spider-args", "{"], "--spider-args: '{' is not JSON"),
        (["--spider-args", "[1]"], "--spider-args: '[1]' is not allowed; give a JSON object"),
        (["--spider-args", '{"a": {"b": NaN}}'], "spider_args.a"),
        (["--job-settings", "17"], "--job-settings: '17' is not allowed"),
        (["--units", "two"], "invalid int value: 'two'"),
        (["--units", "0"], "units: 0 is not allowed"),
        (["--priority", "0"], "priority: 0 is not allowed"),
        (["--pool", "A"], "pool: 'A' is not allowed"),
        (["--max-running-jobs", "-1"], "--max-running-jobs: -1 is not allowed"),
        (["--loop-mode", "-1"], "--loop-mode: -1 is not allowed"),
        (["--max-running-time", "x"], "invalid int value"),
        (["--unknown"], "unrecognized arguments: --unknown"),
        (["superfluous"], "unrecognized arguments: superfluous"),
        (["-t", ""], "--children-tag: '' is not allowed"),
        (["--flow-id", "f" * 121], "flow id: "),
        (["--help"], "they only ask for help"),
    ],
)
def test_options_that_do_not_parse(argv: list[str], text: str) -> None:
    """They are reported as an error, with the usage, and the process does not exit."""
    with pytest.raises(ClassError) as error:
        simulate(generator(pages(1)), argv)
    assert text in str(error.value)
    assert str(error.value).startswith("options: ")


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ClassError, match="give at most 63"):
        simulate(generator(name="n" * 64))


def test_options_of_the_class_that_cannot_be_read() -> None:
    def add_argparser_options(self: BaseScript) -> None:
        self.argparser.add_argument("--mine", type=int, default=self.nothing)  # type: ignore[attr-defined]

    with pytest.raises(ClassError, match="add_argparser_options raised AttributeError"):
        parser_of(generator(add_argparser_options=add_argparser_options))


@pytest.mark.parametrize(
    "members",
    [
        {"on_item_error": "ignore"},
        {"on_code_change": "no"},
        {"MAX_RETRIES": "3"},
        {"retry_delay": -1},
        {"retry_delay_factor": None},
    ],
)
def test_attributes_that_cannot_be(members: dict[str, Any]) -> None:
    with pytest.raises(ClassError, match=f"{next(iter(members))}: .* is not allowed; give"):
        simulate(generator(**members))


@pytest.mark.parametrize(
    "method", ["__init__", "on_start", "workflow_loop", "base_loop_tasks", "on_close"]
)
@pytest.mark.parametrize("error", [KeyError("gone"), SystemExit(1)])
def test_a_method_that_raises_is_named(method: str, error: BaseException) -> None:
    def raising(self: Any) -> Any:
        raise error

    with pytest.raises(
        ClassError, match=f"{method} raised {type(error).__name__}: .*test_bad_input.py"
    ):
        simulate(generator(pages(1), **{method: raising}))


def _raising(times: int, error: BaseException) -> Any:
    calls: list[Any] = []

    def hook(self: Any, *args: Any) -> None:
        if "manager/1/1" not in args:
            return
        calls.append(args)
        self.state["half"] = self.state.get("half", 0) + 1
        self.stats.inc_value("half")
        self.append_flow_tag(f"HALF={len(calls)}")
        self.add_job("shops", {"spider_args": {"page": "100"}})
        self.schedule_spider_with_jobargs({"spider_args": {"page": "101"}})
        if len(calls) <= times:
            raise error

    return hook


@pytest.mark.parametrize("hook", ["finished_metadata_hook", "finished_ok_hook", "bad_outcome_hook"])
def test_a_hook_that_raises_is_undone_tried_again_and_goes_on(hook: str) -> None:
    """What the failed tries did through the manager does not count: everything exists once."""
    outcome = {1: "failed"} if hook == "bad_outcome_hook" else "finished"
    cls = generator(pages(1), **{hook: _raising(2, ValueError("not today"))})
    record = simulate(cls, outcomes=outcome, cycles=6)
    assert (record.state["half"], record.stats["half"], record.flow_tags) == (1, 1, ["HALF=3"])
    assert [job.seq for job in record.scheduled] == [1, 2, 3]
    assert sorted(order(record)) == ["1", "100", "101"]
    assert record.errors[0].startswith(
        "hooks of shops(page=1): ValueError: not today (test_bad_input.py:"
    )


def test_a_hook_that_always_raises_is_given_up_after_three_tries() -> None:
    """The window continues and reports this; a manager of one job still ends with that job's
    outcome.
    """

    def raising(self: Any, *args: Any) -> None:
        raise SystemExit("never")

    record = simulate(generator(pages(1, 2, 3), finished_ok_hook=raising, default_max_jobs=1))
    assert (order(record), record.over) == (["1", "2", "3"], True)
    assert any("failed too often" in error for error in record.errors)
    members = {"name": "c", "spider": "s", "loop_mode": 60, "bad_outcome_hook": raising}
    one = simulate(type("C", (CrawlManager,), members), outcomes="killed by oom")
    assert (len(one.scheduled), one.close_reason, one.failed) == (1, "killed by oom", True)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda: 1 / 0, "can_schedule_job_with_params of shops(page=1): ZeroDivisionError"),
        (lambda: None, "returned None; return True or False"),
        (lambda: _coroutine(), "is a coroutine, which is not awaited"),
    ],
)
def test_a_predicate_that_fails_keeps_its_job_waiting(answer: Any, text: str) -> None:
    """Others continue, it is asked again in the next cycle, and the manager says why it waits."""

    def can_schedule_job_with_params(self: Any, params: Any) -> Any:
        good = params["spider_args"]["page"] == "2" or self._cycle.facts.now > 1_700_000_200
        return True if good else answer()

    record = simulate(
        generator(pages(1, 2), can_schedule_job_with_params=can_schedule_job_with_params)
    )
    assert order(record) == ["2", "1"]
    assert text in record.errors[0]
    assert "1 job is waiting: can_schedule_job_with_params failed" in record.waits


async def _coroutine() -> bool:
    return True


def test_hooks_and_caps_that_answer_nonsense() -> None:
    async def finished_ok_hook(self: Any, *args: Any) -> None:
        raise AssertionError("nobody awaits it")

    record = simulate(generator(pages(1), finished_ok_hook=finished_ok_hook))
    assert "finished_ok_hook is a coroutine" in record.errors[0]
    record = simulate(
        generator(pages(1), cap_key=lambda self, params: ["x"], max_per_key=1), cycles=2
    )
    assert "cap_key of shops(page=1) returned ['x']; return a string or None" in record.errors[0]
    for members in (
        {"max_running_jobs": "3"},
        {"max_running_jobs": float("nan")},
        {"max_jobs_per_spider": "1"},
        {"max_per_key": "1", "cap_key": lambda self, params: "x"},
    ):
        with pytest.raises(ClassError, match="is not allowed; give a number from 0"):
            simulate(generator(pages(1), **members))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ([1], "a list is not allowed"),
        ({"x": object()}, "not JSON serializable"),
        ({"x": "y" * 70_000}, "bytes of JSON are too many"),
        ({1: "x"}, "all names must be strings"),
        ({"x": float("nan")}, "self.state"),
    ],
)
def test_a_state_that_cannot_be_kept(state: Any, text: str) -> None:
    def finished_ok_hook(self: Any, *args: Any) -> None:
        self.state = state

    record = simulate(generator(pages(1), finished_ok_hook=finished_ok_hook))
    assert text in record.errors[0]
    assert record.state == {}

    def on_start(self: Any) -> None:
        self.state = state

    with pytest.raises(ClassError, match=r"self\.state"):
        simulate(generator(on_start=on_start))


@pytest.mark.parametrize(
    "call",
    [
        lambda self: self.set_close_reason(""),
        lambda self: self.set_close_reason(5),
        lambda self: self.append_flow_tag("x" * 201),
        lambda self: self.stats.set_value("x", "many"),
        lambda self: self.add_job("shops", [1]),
        lambda self: self.schedule_spider_with_jobargs({"tags": "A"}),
        *(
            lambda self, reason=reason: setattr(self, "close_reason", reason)
            for reason in (5, "", "x" * 201)
        ),
    ],
)
def test_a_reason_a_tag_and_a_number_that_cannot_be(call: Any) -> None:
    """This includes values that are set without the method."""
    with pytest.raises(
        ClassError, match=r"(on_start|close_reason) raised .*(is not allowed|missing)"
    ):
        simulate(generator(on_start=call))


def test_what_crawlers_say_in_their_statistics_makes_no_hook_fail() -> None:
    """Too many names, names that are too long, and numbers that are too large are left out."""
    big = {f"spider_exceptions/{n}": 1.0 for n in range(STATS_MAX + 5)} | {
        "item_scraped_count": 1.7e308
    }
    record = simulate(generator(pages(1, 2)), stats={"spider_exceptions/" + "x" * 190: 1, **big})
    assert (record.errors, len(record.stats)) == ([], STATS_MAX)


def test_a_long_error_of_the_source_is_told_in_a_short_sentence() -> None:
    def raising(self: Any) -> Iterator[Any]:
        yield {"page": 1}
        yield {"page": 2, "tags": [["x" * 50_000]] * 3}

    simulation = Simulation(generator(set_parameters_gen=raising))
    simulation.add_page(Page(position=0, error="position 1: " + "x" * 3000))
    assert all(len(sentence) <= 1000 for sentence in simulation.run().waits)


def test_an_init_that_forgets_its_base() -> None:
    with pytest.raises(ClassError, match=r"does not call super\(\)"):
        simulate(generator(__init__=lambda self: None))


def test_an_error_that_cannot_be_told() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError

    def on_start(self: Any) -> None:
        raise Odd

    with pytest.raises(ClassError, match="on_start raised Odd: its message cannot be read"):
        simulate(generator(on_start=on_start))


def test_a_class_without_cycles() -> None:
    with pytest.raises(ClassError, match="the class has no cycles"):
        simulate(type("Script", (BaseScript,), {"name": "script"}))
    with pytest.raises(ClassError, match="the manager has no name"):
        identity_of(type("Script", (BaseScript,), {}), [], [])
