"""Scripts and workflow managers: rows S-01 … S-17 and S-20 … S-27 of the rules of managers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from crawler_lifecycle.managers import (
    BaseLoopScript,
    BaseScript,
    CachedFinishedJobsMixin,
    CrawlManager,
    GeneratorCrawlManager,
    WorkFlowManager,
)
from crawler_lifecycle.managers.driver import identity_of, parser_of
from crawler_lifecycle.managers.testing import Simulation, simulate
from crawler_lifecycle.managers.types import ClassError
from crawler_lifecycle.managers.utils import get_kumo_loglevel
from tests.managers.support import generator, order, pages, tag


class Loop(WorkFlowManager):
    """A workflow manager that counts its cycles."""

    name, loop_mode = "loop", 30
    most = 3

    def on_start(self) -> None:
        self.state["started"] = self.state.get("started", 0) + 1

    def on_close(self) -> None:
        self.stats.set_value("closed", 1)

    def workflow_loop(self) -> bool:
        self.state["cycles"] = self.state.get("cycles", 0) + 1
        return bool(self.state["cycles"] < self.most)


def test_s01_cycles_go_on_while_they_answer_true() -> None:
    record = simulate(Loop)
    assert (record.state["cycles"], record.seconds, record.over) == (3, 60, True)
    assert simulate(Loop, ["--loop-mode", "5"]).seconds == 10


def test_s01_without_loop_mode_there_is_one_cycle() -> None:
    assert simulate(Loop, ["--loop-mode", "0"]).state["cycles"] == 1
    record = simulate(generator(pages(*range(5)), default_max_jobs=2), ["--loop-mode", "0"])
    assert (order(record), record.over, record.left) == (["0", "1"], True, 2)


def test_s02_the_time_limit_stops_the_loop_and_nothing_else() -> None:
    """Checked at the beginning of a cycle; its jobs are neither stopped nor waited for."""
    cls = generator(pages(*range(9)), default_max_jobs=2)
    record = simulate(cls, ["--max-running-time", "100"], seconds=70)
    assert ([job.at for job in record.scheduled], record.left) == ([0, 0, 70, 70], 2)
    assert record.close_reason == "finished"
    assert simulate(type("Short", (Loop,), {"max_running_time": 20})).state["cycles"] == 1


def test_s03_hooks_of_start_close_and_cycle() -> None:
    record = simulate(Loop)
    assert (record.state["started"], record.stats["closed"]) == (1, 1)
    assert [name for name, _ in record.hooks] == ["on_start", *["workflow_loop"] * 3, "on_close"]
    ended = simulate(type("Tasks", (Loop,), {"base_loop_tasks": lambda self: False}))
    assert (ended.over, ended.state.get("cycles")) == (True, None)


def test_s04_the_close_reason() -> None:
    """It may be set again; the default is ``finished``."""

    def finished_ok_hook(self: Any, *job: Any) -> None:
        self.set_close_reason("first")
        self.set_close_reason("second" if self.get_close_reason() == "first" else "wrong")

    members = {"name": "c", "spider": "s", "loop_mode": 60}
    again = simulate(type("C", (CrawlManager,), members | {"finished_ok_hook": finished_ok_hook}))
    assert again.close_reason == "second"
    assert simulate(type("C", (CrawlManager,), members)).close_reason == "finished"

    def set_first(self: Any) -> None:
        self.set_close_reason("mine")

    taken = simulate(
        type("C", (CrawlManager,), members | {"on_start": set_first}), outcomes="failed"
    )
    assert taken.close_reason == "mine", "the outcome of a job is adopted only where none was set"


def test_s05_where_the_flow_id_comes_from() -> None:
    """From a tag, then from an option, else generated; a script that needs none has none."""
    cls = generator()
    assert identity_of(cls, ["--flow-id", "option"], ["FLOW_ID=tag", "FLOW_ID=later"]) == (
        "crawl",
        "tag",
    )
    assert identity_of(cls, ["--flow-id", "option"], []) == ("crawl", "option")
    assert identity_of(cls, [], []) == ("crawl", None)
    assert tag(simulate(generator(pages(1)), tags=["FLOW_ID=f"]).scheduled[0].tags, "FLOW_ID") == [
        "f"
    ]
    assert len({generator().generate_flow_id() for _ in range(3)}) == 3


def test_s06_where_the_name_comes_from() -> None:
    nameless = generator(pages(1), name="")
    assert identity_of(generator(), [], ["NAME=tag"])[0] == "tag"
    assert identity_of(nameless, ["positional"], [])[0] == "positional"
    assert tag(simulate(nameless, ["positional"]).scheduled[0].tags, "PARENT_NAME") == [
        "positional"
    ]
    assert tag(
        simulate(generator(pages(1)), tags=["NAME=tag"]).scheduled[0].tags, "PARENT_NAME"
    ) == ["tag"]
    with pytest.raises(ClassError, match="the following arguments are required: name"):
        identity_of(nameless, [], [])


def test_s07_tags_of_jobs_are_a_sorted_set() -> None:
    def on_start(self: BaseScript) -> None:
        self.append_flow_tag("Z=flow")

    cls = generator(
        [{"page": 1, "tags": ["own", "B=2", "own"]}], on_start=on_start, children_tags=["class"]
    )
    argv = ["-t", "A=1", "--children-tag", "B=2", "--flow-id", "f"]
    wanted = [
        "A=1",
        "B=2",
        "FLOW_ID=f",
        "JOBSEQ=0000000001",
        "PARENT_NAME=crawl",
        "Z=flow",
        "class",
        "own",
    ]
    assert simulate(cls, argv).scheduled[0].tags == wanted

    class Plain(BaseLoopScript):
        """A script without name and flow."""

        name = "plain"

        def workflow_loop(self) -> bool:
            self.schedule_spider("shops", tags=["own"], page=1)
            return False

    record = simulate(Plain, ["-t", "A"])
    assert record.scheduled[0].tags == ["A", "own"], (
        "without a flow id neither FLOW_ID nor PARENT_NAME"
    )
    assert record.scheduled[0].spider_args == {"page": "1"}


def test_s08_a_flow_tag_is_for_the_manager_and_later_jobs_and_survives_a_restart() -> None:
    def finished_ok_hook(self: GeneratorCrawlManager, *job: Any) -> None:
        self.append_flow_tag("SEEN=1")
        assert "SEEN=1" in self.get_job_tags()

    simulation = Simulation(
        generator(pages(1, 2, 3), default_max_jobs=1, finished_ok_hook=finished_ok_hook)
    )
    simulation.run(until=lambda record: len(record.scheduled) == 2)
    simulation.restart()
    record = simulation.run()
    assert [tag(job.tags, "SEEN") for job in record.scheduled] == [[], ["1"], ["1"]]
    assert record.flow_tags == ["SEEN=1"]


PROGRAMS = {
    "big": {
        "description": "many",
        "command_line": ["--units", "{units}", "--max-running-jobs", "9"],
    }
}


def test_s10_named_command_lines() -> None:
    cls = generator(pages(1), PROGRAMS=PROGRAMS)
    simulation = Simulation(cls, ["-g", "big", "-v", "units:3"])
    assert simulation.run().scheduled[0].units == 3
    assert (
        simulate(cls, ["--program", "big", "-v", "units:3", "--units", "5"]).scheduled[0].units == 5
    )
    for argv, text in (
        (["-g", "small"], "--program small is not defined; use one of these programs: big: many"),
        (["-g", "big"], "needs the variable 'units'"),
        (["-g", "big", "-v", "units"], "give name:value"),
    ):
        with pytest.raises(ClassError, match=text):
            simulate(cls, argv)


def test_s10_a_flow_id_in_a_named_command_line_is_never_ignored_in_silence() -> None:
    """Whoever starts a manager sets its flow id, and does not know its named command lines."""
    cls = generator(pages(1), PROGRAMS={"nightly": {"command_line": ["--flow-id", "n1"]}})
    assert tag(simulate(cls, ["-g", "nightly"]).scheduled[0].tags, "FLOW_ID") == ["n1"]
    with pytest.raises(
        ClassError,
        match=r"has --flow-id n1, but the manager has n2; .*crawlctl manager start --flow n1",
    ):
        simulate(cls, ["-g", "nightly"], tags=["FLOW_ID=n2"])


def test_s14_a_pending_job_counts_as_running() -> None:
    seen: list[Any] = []

    def workflow_loop(self: Any) -> bool:
        keys = self.state.setdefault("keys", [])
        if not keys:
            keys.append(self.schedule_spider("shops"))
        seen.append((self.is_running(keys[0]), self.is_finished(keys[0])))
        return seen[-1][1] is None

    record = simulate(
        type(
            "W", (WorkFlowManager,), {"name": "w", "loop_mode": 60, "workflow_loop": workflow_loop}
        )
    )
    assert seen == [(True, None), (False, "finished")]
    assert record.over


SPIDER_STATS = {
    **{
        "downloader/response_status_count/200": 7,
        "item_scraped_count": 3,
        "mine/a": 2,
        "elapsed": 9,
    },
    **{"downloader/response_count": 8, "spider_exceptions/KeyError": 1},
}


def test_s15_statistics_of_jobs_are_added_up_once() -> None:
    """This also holds if two of the prefixes match one name, which the original counts twice."""
    cls = generator(pages(1, 2), target_spider_stats=("mine/", "mine/a", "item_"))
    stats = simulate(cls, stats=SPIDER_STATS).stats
    assert {name: value for name, value in stats.items() if name.endswith("/total")} == {
        "downloader/response_status_count/200/total": 14,
        "downloader/response_count/total": 16,
        "item_scraped_count/total": 6,
        "spider_exceptions/KeyError/total": 2,
        "mine/a/total": 4,
    }
    each = simulate(
        generator(pages(1), stats_only_total=False), stats={"item_scraped_count": 3}
    ).stats
    assert (each["item_scraped_count/shops"], each["item_scraped_count/total"]) == (3, 3)


def test_s20_defaults() -> None:
    options = {action.dest: action.default for action in parser_of(generator())._actions}
    assert (options["max_running_jobs"], options["units"], options["spider_args"]) == (
        1000,
        None,
        "{}",
    )
    cls = WorkFlowManager
    assert (cls.flow_id_required, cls.acquire_all_jobs, cls.dont_acquire_finished_jobs) == (
        True,
        False,
        False,
    )
    assert (
        BaseScript.flow_id_required,
        BaseLoopScript.loop_mode,
        GeneratorCrawlManager.MAX_RETRIES,
    ) == (False, 0, 0)
    more = (
        "--project-id",
        "--flow-id",
        "-t",
        "-g",
        "-v",
        "--loop-mode",
        "--max-running-time",
        "--job-settings",
    )
    assert [one for one in more if one not in parser_of(generator()).format_help()] == []


def test_s21_failed_outcomes_are_a_list_of_each_object() -> None:
    words = (
        "failed",
        "killed by oom",
        "cancelled",
        "cancel_timeout",
        "memusage_exceeded",
        "diskusage_exceeded",
    )
    assert WorkFlowManager.base_failed_outcomes == (*words, "cancelled (stalled)")
    bad: list[str] = []

    def __init__(self: Any) -> None:
        GeneratorCrawlManager.__init__(self)
        self.failed_outcomes.append("my_reason")

    def bad_outcome_hook(self: Any, spider: str, outcome: str, *rest: Any) -> None:
        bad.append(outcome)

    outcomes = [*words, "cancelled (stalled)", "my_reason", "anything odd", "lost"]
    cls = generator(pages(*range(10)), __init__=__init__, bad_outcome_hook=bad_outcome_hook)
    simulate(cls, outcomes=outcomes)
    assert bad == [*words, "cancelled (stalled)", "my_reason", "lost"], (
        "ours that Scrapy Cloud has not are bad too"
    )
    assert "my_reason" not in WorkFlowManager.base_failed_outcomes


def test_s13_owned_jobs_come_page_by_page_each_once() -> None:
    keys: list[str] = []

    def on_close(self: GeneratorCrawlManager) -> None:
        keys.extend(job["key"] for job in self.get_owned_jobs(state=["finished"]))

    simulate(generator(pages(*range(600)), on_close=on_close))
    assert sorted(keys) == sorted(f"manager/1/{n}" for n in range(1, 601))


def test_s23_sd11_owned_jobs() -> None:
    """They need a state and accept no tag; all attempts and projects are found."""
    found: list[Any] = []

    def on_close(self: GeneratorCrawlManager) -> None:
        found.extend(self.get_finished_owned_jobs())
        assert [job["key"] for job in self.get_finished_owned_jobs(project_id=5)] == ["manager/1/2"]
        assert len(list(self.get_owned_jobs(state=["finished"], count=1, meta=["tags"]))) == 1
        assert len(list(self.get_owned_jobs(state="finished"))) == 2
        assert not list(self.get_owned_jobs(state=["finished"], lacks_tag=["PARENT_NAME=crawl"]))
        assert not list(self.get_owned_jobs(state=["running", "pending"]))
        for kwargs, text in (
            ({}, "state"),
            ({"state": "gone"}, "state"),
            ({"state": ["gone"]}, "state"),
            ({"state": ["finished"], "has_tag": ["A"]}, "has_tag is not allowed"),
            ({"state": ["finished"], "colour": 1}, "colour"),
        ):
            with pytest.raises(ValueError, match=text):
                self.get_owned_jobs(**kwargs)

    record = simulate(generator([{"page": 1}, {"page": 2, "project_id": 5}], on_close=on_close))
    assert record.over
    assert {(job["key"], job["close_reason"], job["spider"]) for job in found} == {
        ("manager/1/1", "finished", "shops"),
        ("manager/1/2", "finished", "shops"),
    }


class Resuming(GeneratorCrawlManager):
    """Records what it gets at a resume."""

    name, loop_mode, spider, default_max_jobs = "resuming", 60, "shops", 2

    def set_parameters_gen(self) -> Any:
        yield from pages(1, 2, 3, 4)

    def on_start(self) -> None:
        self.told: list[tuple[str, str]] = [("start", str(self.is_resumed))]

    def resume_running_job_hook(self, job: Any) -> None:
        self.told.append((job["state"], job["spider_args"]["page"]))

    def resume_finished_job_hook(self, job: Any) -> None:
        self.told.append((job["state"], job["spider_args"]["page"]))

    def base_loop_tasks(self) -> bool:
        self.state["told"] = self.told
        return True


def _resumed(cls: type[Resuming]) -> list[list[str]]:
    simulation = Simulation(cls, seconds=lambda job: 60 if job.seq == 1 else 500)
    simulation.run(until=lambda record: len(record.scheduled) == 3)
    simulation.restart()
    simulation.run(cycles=1)
    return [list(one) for one in simulation.record.state["told"]]


def test_s24_s25_a_resume_tells_of_live_jobs_first_and_then_of_ended_ones() -> None:
    assert simulate(Resuming).state["told"] == [["start", "False"]]
    assert _resumed(Resuming) == [
        ["start", "True"],
        ["running", "2"],
        ["running", "3"],
        ["finished", "1"],
    ]


def test_s25_ended_jobs_may_be_left_out_of_a_resume() -> None:
    cls = type("Short", (Resuming,), {"dont_acquire_finished_jobs": True})
    assert _resumed(cls) == [["start", "True"], ["running", "2"], ["running", "3"]]


def test_s26_wait_for_sleeps_first_and_says_whether_they_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    seen: list[Any] = []

    def workflow_loop(self: Any) -> bool:
        if not self.state:
            self.state["key"] = key = self.schedule_spider("shops")
            with pytest.raises(ValueError, match="starts only after this cycle"):
                self.wait_for(key)
            return True
        before = self._platform.now()
        seen.append(
            (
                self.wait_for([self.state["key"]], interval=30, timeout=60, heartbeat=1),
                self._platform.now() - before,
            )
        )
        seen.append((self.wait_for(self.state["key"]), self._platform.now() - before))
        return False

    cls = type(
        "W", (WorkFlowManager,), {"name": "w", "loop_mode": 10, "workflow_loop": workflow_loop}
    )
    simulate(cls, seconds=100)
    assert seen == [(False, 60), (True, 120)]
    assert [one.message for one in caplog.records if "still running" in one.message] == [
        "wait_for: still running: manager/1/1",
        "wait_for: still running: manager/1/1",
        "wait_for: still running after 60 s: manager/1/1",
    ]


def test_s27_ends_are_read_once_in_each_cycle() -> None:
    """Back to the first known one; a late end of an early job is found as well."""
    asked: list[int] = []

    class Cached(CachedFinishedJobsMixin, GeneratorCrawlManager):
        name, loop_mode, spider = "cached", 1000, "shops"

        def set_parameters_gen(self) -> Any:
            yield from pages(1, 2, 3)

        def get_owned_jobs(self, project_id: Any = None, **kwargs: Any) -> Any:
            asked.append(len(self.state["seen"]))
            return super().get_owned_jobs(project_id, **kwargs)

        def workflow_loop(self) -> Any:
            seen = self.state.setdefault("seen", [])
            seen.append([self.is_finished(f"manager/1/{n}") for n in (1, 2, 3)])
            return super().workflow_loop()

    record = simulate(Cached, seconds=lambda job: {1: 300.0, 2: 200.0, 3: 100.0}[job.seq])
    good = "finished"
    assert record.state["seen"] == [[None] * 3, [None, None, good], [None, good, good], [good] * 3]
    assert asked == [0, 1, 2, 3]


def test_a_key_that_no_job_has() -> None:
    def workflow_loop(self: WorkFlowManager) -> bool:
        return self.is_running("17/4/2")

    cls = type("W", (WorkFlowManager,), {"name": "w", "workflow_loop": workflow_loop})
    with pytest.raises(ClassError, match="job key '17/4/2': no job has this key"):
        simulate(cls)


def test_the_log_level_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, level in (
        ("", logging.INFO),
        ("debug", logging.DEBUG),
        ("40", 40),
        ("nonsense", logging.INFO),
    ):
        monkeypatch.setenv("LOG_LEVEL", text)
        assert get_kumo_loglevel() == level


def test_a_script_of_its_own_reads_its_options_and_has_no_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["crawl.py", "--max-running-jobs", "7", "--flow-id", "f"])
    script = generator(pages(1))()
    assert (script.args.max_running_jobs, script.flow_id, script.max_running_jobs) == (7, "f", 7)
    with pytest.raises(RuntimeError, match="no worker executes this object"):
        script.is_running("1")
    monkeypatch.setattr("sys.argv", ["crawl.py", "--max-running-jobs", "many"])
    with pytest.raises(SystemExit) as left:
        generator()()
    assert left.value.code == 2
    assert "invalid int value: 'many'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda script: script.client.get_job("1/2/3"), "get_owned_jobs lists jobs"),
        (lambda script: script.get_project(), "schedule_spider starts one"),
        (lambda script: script.add_job_tags(tags=["a"]), "append_flow_tag adds a tag"),
        (lambda script: script.finish("1/2/3"), "set_close_reason sets the outcome"),
    ],
)
def test_the_api_of_scrapy_cloud_is_answered_with_what_to_call_here(
    call: Any, instead: str
) -> None:
    class Moved(CrawlManager):
        name, spider = "moved", "shops"

        def on_start(self) -> None:
            call(self)

    with pytest.raises(ClassError, match="there is no API of Scrapy Cloud; .*" + instead):
        simulate(Moved)


def test_any_other_missing_attribute_is_answered_as_usual() -> None:
    class Odd(CrawlManager):
        name, spider = "odd", "shops"

        def on_start(self) -> None:
            assert not hasattr(self, "client")
            self.no_such_thing()  # type: ignore[attr-defined]

    with pytest.raises(ClassError, match="'Odd' object has no attribute 'no_such_thing'"):
        simulate(Odd)
