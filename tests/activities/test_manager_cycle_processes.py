"""The same with a real process: everything that a cycle needs survives the way there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawler_lifecycle.activities.managers import cycles as managers
from crawler_lifecycle.domain.managers.manager import OUTPUT_BYTES
from crawler_lifecycle.plans.pool import Hosts, Limits
from crawler_lifecycle.plans.process import Rules
from crawler_lifecycle.ports.managers import ManagerFence
from tests.activities.test_manager_cycle import PLAN, Bench, bench, empty

__all__ = ["bench", "empty"]

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


def test_a_manager_in_a_process_of_its_own(bench: Bench, tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "managers.py").write_text(SOURCE)
    hosts = Hosts("w", [PLAN.partition(":")[0]], Rules(folder=tmp_path), Limits())
    bench.activities.hosts = hosts
    try:
        assert bench.cycle().picked == 2
        printed = bench.managers.manager_output(bench.row.manager_id)
        assert printed.endswith("xxx\n")
        assert len(printed.encode()) == OUTPUT_BYTES
        bench.end(1, failed=True)
        retried = bench.cycle()
        assert (retried.error, retried.ended, retried.live) == (None, 1, 2)
        while bench.fences:
            bench.end(min(bench.fences))
            last = bench.cycle()
        assert (last.over, last.error) == (True, None)
        assert sorted((seq, retry) for seq, retry, _ in bench.jobs()) == [(1, 0), (1, 1), (2, 0), (3, 0)]
        assert len(bench.row.state) == 4
        printed = bench.managers.manager_output(bench.row.manager_id)
        assert printed.endswith("\nended: failedended: finishedended: finishedended: finished"), printed[-200:]
        assert hosts.state()["started"] == 1
        assert hosts.state()["live"] == 0
    finally:
        hosts.close()


SLOW = """
import time
from crawler_lifecycle.managers import GeneratorCrawlManager

class M(GeneratorCrawlManager):
    name, spider, loop_mode = "shops", "shop", 60

    def __init__(self):
        time.sleep(1.2)  # the worker looks at the process twice a second
        super().__init__()

    def set_parameters_gen(self):
        yield {"page": 1}
"""


def test_people_are_told_what_a_class_is_at_that_works_for_long(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "managers.py").write_text(SLOW)
    hosts = Hosts("w", [PLAN.partition(":")[0]], Rules(folder=tmp_path), Limits())
    bench.activities.hosts = hosts
    noted = list[str]()
    note = bench.managers.note_error

    def note_error(fence: ManagerFence, error: str | None, waiting_for: str | None = None) -> None:
        noted.append(f"{error}, {waiting_for}")
        note(fence, error, waiting_for)

    monkeypatch.setattr(bench.activities.managers, "note_error", note_error)
    monkeypatch.setattr(managers, "SLOW_S", 0.0)
    try:
        assert bench.cycle().error is None
    finally:
        hosts.close()
    assert noted == ["None, its class has been at work for 0 s, now in __init__"]
    assert "at work" not in (bench.row.waiting_for or "")
