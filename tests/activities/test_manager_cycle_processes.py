"""The same with a real process: the data of a cycle survive serialization, and hooks may take long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.exceptions import CancelledError

from crawler_lifecycle.activities import run_files
from crawler_lifecycle.features.managers.activities import cycles
from crawler_lifecycle.features.managers.domain.manager import OUTPUT_BYTES, TRIES, JobState
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.features.user_code.pool import Hosts, Limits
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.runs import Fence
from tests.activities.test_manager_cycle import PLAN, Fixture, fixture

pytestmark = pytest.mark.processes

__all__ = ["fixture"]

SOURCE = """
from crawler_lifecycle.managers import GeneratorCrawlManager

class M(GeneratorCrawlManager):
    name = "shops"
    spider = "shop"
    default_max_jobs = 2
    loop_mode = 60
    MAX_RETRIES = 1

    def set_parameters_gen(self):
        print("password=hunter2 of the list", "x" * 20_000)
        for page in range(3):
            yield {"page": page}

    def finished_metadata_hook(self, job_id, metadata):
        print("ended:", metadata["close_reason"], end="")
        self.state[str(job_id)] = metadata["close_reason"]
        assert self.get_owned_jobs(state=["running"]) is not None
"""

SLOW = """
import time
from crawler_lifecycle.managers import GeneratorCrawlManager

class M(GeneratorCrawlManager):
    name, spider, loop_mode = "shops", "shop", 60

    def __init__(self):
        time.sleep(1.2)  # the worker polls the process twice a second
        super().__init__()

    def set_parameters_gen(self):
        yield {"page": 1}
"""

HOOKS = """
import time
from crawler_lifecycle.managers import GeneratorCrawlManager

class M(GeneratorCrawlManager):
    name = "shops"
    spider = "shop"
    default_max_jobs = 10
    loop_mode = 60

    def set_parameters_gen(self):
        for page in range(5):
            yield {"page": page}

    def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        print("called", jobkey, flush=True)
        self.stats.inc_value("calls")
        time.sleep(SECONDS.get(jobkey, SECONDS["all"]))
        self.add_job(spider, {"spider_args": {"page": f"more {jobkey}"}})
"""


@pytest.fixture
def hosts(fixture: Fixture, tmp_path: Path) -> Iterator[Hosts]:
    """Return processes for the class in ``write``."""
    found = Hosts("w", [PLAN.partition(":")[0]], Rules(folder=tmp_path), Limits(hook_timeout_s=2.0))
    fixture.activities.hosts = found
    yield found
    found.close()


def write(folder: Path, source: str) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "managers.py").write_text(source)


def test_a_manager_in_a_process_of_its_own(fixture: Fixture, hosts: Hosts, tmp_path: Path) -> None:
    write(tmp_path, SOURCE)
    hosts._limits = Limits()
    assert fixture.cycle().picked == 2
    printed = fixture.managers.output(fixture.row.manager_id)
    assert printed.endswith("xxx\n")
    assert len(printed.encode()) == OUTPUT_BYTES
    fixture.end(1, failed=True)
    retried = fixture.cycle()
    assert (retried.error, retried.ended, retried.live) == (None, 1, 2)
    while fixture.fences:
        fixture.end(min(fixture.fences))
        last = fixture.cycle()
    assert (last.over, last.error) == (True, None)
    assert sorted((seq, retry) for seq, retry, _ in fixture.jobs()) == [
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
    ]
    assert len(fixture.row.state) == 4
    printed = fixture.managers.output(fixture.row.manager_id)
    assert printed.endswith("\nended: failedended: finishedended: finishedended: finished"), (
        printed[-200:]
    )
    assert hosts.state()["started"] == 1
    assert hosts.state()["live"] == 0


def test_people_are_told_what_a_class_is_at_that_works_for_long(
    fixture: Fixture, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SLOW)
    hosts._limits = Limits()
    noted = list[str]()
    note = fixture.managers.note_error

    def note_error(fence: ManagerFence, error: str | None, waiting_for: str | None = None) -> None:
        noted.append(f"{error}, {waiting_for}")
        note(fence, error, waiting_for)

    monkeypatch.setattr(fixture.activities.managers, "note_error", note_error)
    monkeypatch.setattr(cycles, "SLOW_S", 0.0)
    assert fixture.cycle().error is None
    assert noted == ["None, a cycle of its class has taken 0 s so far, now in __init__"]
    assert "at work" not in (fixture.row.waiting_for or "")


def test_hooks_that_take_longer_together_than_one_may(
    fixture: Fixture, hosts: Hosts, tmp_path: Path
) -> None:
    write(tmp_path, HOOKS + "SECONDS = " + "{'all': 1.1}")
    assert fixture.cycle().picked == 5
    for run_id in range(1, 6):
        fixture.end(run_id)
    ended = 0
    while ended < 5:
        answer = fixture.cycle()
        assert answer.error is None
        ended += answer.ended
    assert (fixture.row.stats["calls"], hosts.state()["started"]) == (5, 1)


def test_a_hook_that_hangs_costs_no_other_one_its_effects(
    fixture: Fixture, hosts: Hosts, tmp_path: Path
) -> None:
    write(tmp_path, HOOKS + "SECONDS = " + "{'all': 0, '3': 60}")
    fixture.cycle()
    for run_id in range(1, 6):
        fixture.end(run_id)
    answer = fixture.cycle()
    assert "took more than 2 s" in (answer.error or "")
    assert "tried 1 of 3 times" in (answer.error or "")
    assert fixture.row.stats["calls"] == 2, "on record: those before it, and nothing of its own"
    again = fixture.cycle(replace(fixture.activities, reports={}))
    assert "tried 2 of 3 times" in (again.error or ""), "counted on record, by whichever worker"
    assert fixture.row.stats["calls"] == 4, "those that wait behind it went before it"
    fixture.cycle()
    last = fixture.cycle()
    assert (last.ended, fixture.row.hook_errors) == (1, 1)
    printed = fixture.managers.output(1).split("called ")[1:]
    assert [text.split()[0] for text in printed] == ["1", "2", "3", "4", "5", "3", "3"]
    added = [
        job.job.spider_args["page"]
        for job in fixture.managers.list_jobs(1)
        if "more" in job.job.spider_args["page"]
    ]
    assert added == ["more 1", "more 2", "more 4", "more 5"]
    assert len(fixture.jobs(JobState.ENDED)) == 5


def test_what_hooks_did_before_a_stop_interrupts_one_is_on_record(
    fixture: Fixture, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, HOOKS + "SECONDS = " + "{'all': 0, '3': 3600}")
    hosts._limits = Limits(hook_timeout_s=600.0)
    fixture.cycle()
    for run_id in range(1, 6):
        fixture.end(run_id)

    def alive() -> None:
        [host] = hosts._pool.processes()
        if host.process.at == ("finished_ok_hook", 3):
            raise CancelledError

    monkeypatch.setattr(cycles, "alive", alive)
    with pytest.raises(CancelledError):
        fixture.cycle()
    assert fixture.jobs(JobState.ENDED) == [(1, 0, "ended"), (2, 0, "ended")]
    assert (fixture.row.stats["calls"], fixture.row.hook_errors) == (2, 0)


READS = """
import os
from crawler_lifecycle.managers import GeneratorCrawlManager

class M(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs = "shops", "shop", 60, 3

    def set_parameters_gen(self):
        for page in range(3):
            yield {"page": page}

    def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        self.state[jobkey] = [item["n"] for item in self.items(jobkey, offset=1)]
        self.state["files"] = [[file.name, file.bytes] for file in self.files(jobkey)]
        self.state["text"] = self.open(jobkey, "task-0/page.txt").read().decode()

    def bad_outcome_hook(self, spider, outcome, job_args_override, jobkey):
        try:
            self.items(jobkey)
        except ValueError as error:
            self.state["refused"] = str(error)
        self.state["partial"] = len(list(self.items(jobkey, partial=True)))
        try:
            self._platform.run_files(404)
        except Exception as error:
            self.state["nobody"] = type(error).__name__
        try:
            self.items("manager/0/9")
        except ValueError as error:
            self.state["unknown"] = str(error)
"""


def test_items_of_its_jobs_out_of_archives_that_may_come_later(
    fixture: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kubernetes, the archive is stored after the verdict. A hook that needs it runs again until
    it is there, and hooks of other runs are called in the meantime.
    """
    monkeypatch.setattr(run_files, "WAIT_S", 0.0)
    folder = tmp_path / "left"
    folder.mkdir()
    (folder / "items.jsonl").write_text('{"n": 1}\n{"n": 2}\nno json\n{"n": 3}\n')
    (folder / "page.txt").write_text("hello")

    def deliver(run: Fence) -> None:
        key = f"{run.run_id}/1/x.zip"
        result = fixture.archive.store(key, [FileSource("task-0", folder)], {}, lambda *_: None)
        fixture.harness.store.exports.record_export(run, "exported", result, None)

    (tmp_path / "reads.py").write_text(READS)
    fixture.hosts = Hosts("w", ["reads"], Rules(folder=tmp_path), Limits())  # type: ignore[assignment]
    fixture.activities = replace(fixture.activities, hosts=fixture.hosts)
    fixture.harness.write("UPDATE manager SET plan = 'reads:M'")
    try:
        fixture.cycle()
        runs = dict(fixture.fences)
        for run_id in (1, 2, 3):
            fixture.end(run_id, failed=run_id == 3)
        for _ in range(TRIES + 1):
            answer = fixture.cycle()
            assert (answer.ended, answer.over, answer.again_s) == (0, False, cycles.AGAIN_S[-1])
            assert "is not ready yet; try later" in (answer.error or "")
            assert re.search(r"\(reads\.py:\d+\) \(tried again\)", answer.error or "")
        deliver(runs[2])
        deliver(runs[3])
        while fixture.cycle().ended:
            pass
        assert [seq for seq, _, _ in fixture.jobs(JobState.ENDED)] == [2, 3], (
            "they wait for no other one"
        )
        deliver(runs[1])
        while not fixture.cycle().over:
            pass
    finally:
        fixture.hosts.close()  # type: ignore[attr-defined]
    state = fixture.row.state
    assert [numbers for key, numbers in state.items() if key.isdecimal()] == [[2, 3], [2, 3]]
    assert state["files"] == [["task-0/items.jsonl", 35], ["task-0/page.txt", 5]]
    assert (state["text"], state["partial"], state["nobody"]) == ("hello", 3, "RunNotFound")
    assert "use partial=True to read it" in state["refused"]
    assert "give the key of a job that has begun" in state["unknown"]
    assert fixture.row.hook_errors == 0
