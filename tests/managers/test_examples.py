"""The examples in the original's documentation, with only their imports changed."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from crawler_lifecycle.managers.testing import simulate
from tests.managers.support import order

IMPORTS = {
    "shub_workflow.crawl": "crawler_lifecycle.managers",
    "shub_workflow.base": "crawler_lifecycle.managers",
    "shub_workflow.utils": "crawler_lifecycle.managers.utils",
}
ENTRY_POINT = """
import logging
from shub_workflow.crawl import GeneratorCrawlManager


class CrawlManager(GeneratorCrawlManager):

    name = "crawl"
    loop_mode = 60          # seconds between cycles; required for periodic/generator managers
    default_max_jobs = 4    # at most 4 spider jobs running at once
    spider = "example_spider"

    @property
    def description(self):
        return "Schedule example_spider for each input."

    def set_parameters_gen(self):
        for n in range(10):
            yield {"page": n}          # → spider arg page=<n>


if __name__ == "__main__":
    from shub_workflow.utils import get_kumo_loglevel

    logging.basicConfig(format="%(asctime)s %(name)s [%(levelname)s]: %(message)s", level=get_kumo_loglevel())
    CrawlManager().run()
"""
INPUT_FILES = """
from shub_workflow.crawl import GeneratorCrawlManager


def list_folder(path):
    return [f"{path}/{n}.txt" for n in (1, 2)]


class CrawlManager(GeneratorCrawlManager):
    name = "crawl"
    loop_mode = 120
    default_max_jobs = 4
    spider = "example_spider"        # default; a yielded "spider" key overrides per job

    def set_parameters_gen(self):
        for input_file in list_folder("s3://bucket/inputs"):
            yield {"input_file": input_file}     # → spider arg input_file=<...>
"""
ASYNC = """
import asyncio
from shub_workflow.crawl import AsyncSchedulerCrawlManagerMixin, GeneratorCrawlManager


class CrawlManager(AsyncSchedulerCrawlManagerMixin, GeneratorCrawlManager):
    name = "crawl"
    loop_mode = 30
    spider = "example_spider"

    def set_parameters_gen(self):
        yield from ({"page": n} for n in range(3))


if __name__ == "__main__":
    asyncio.run(CrawlManager().run())
"""


def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> ModuleType:
    for theirs, ours in IMPORTS.items():
        text = text.replace(theirs, ours)
    (tmp_path / "crawlmanager.py").write_text(text)
    spec = importlib.util.spec_from_file_location("crawlmanager", tmp_path / "crawlmanager.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "crawlmanager", module)
    spec.loader.exec_module(module)
    return module


def test_the_generator_with_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = _module(tmp_path, monkeypatch, ENTRY_POINT).CrawlManager
    record = simulate(cls)
    assert order(record) == [str(n) for n in range(10)]
    assert (record.most_live, record.close_reason) == (4, "finished")
    assert record.scheduled[9].tags == [
        "FLOW_ID=simulated",
        "JOBSEQ=0000000010",
        "PARENT_NAME=crawl",
    ]
    monkeypatch.setattr("sys.argv", ["crawlmanager.py"])
    assert cls().description == "Schedule example_spider for each input."


def test_one_job_for_each_input_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = simulate(_module(tmp_path, monkeypatch, INPUT_FILES).CrawlManager)
    wanted = ["s3://bucket/inputs/1.txt", "s3://bucket/inputs/2.txt"]
    assert [job.spider_args["input_file"] for job in record.scheduled] == wanted
    assert {job.spider for job in record.scheduled} == {"example_spider"}


def test_the_async_mixin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = _module(tmp_path, monkeypatch, ASYNC).CrawlManager
    assert order(simulate(cls)) == ["0", "1", "2"]
    assert inspect.iscoroutinefunction(cls.run)
    assert inspect.iscoroutinefunction(cls.workflow_loop)
    assert inspect.iscoroutinefunction(cls.schedule_spider_with_jobargs)
