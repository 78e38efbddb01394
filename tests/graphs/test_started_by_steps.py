"""Graphs that a step starts, in memory: each has the id that its step gives it, in every try."""

from __future__ import annotations

from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.starts import derived_id, once
from crawler_lifecycle.graphs import Workflow, current_job
from crawler_lifecycle.graphs.testing import in_memory
from crawler_lifecycle.managers import CrawlManager
from crawler_lifecycle.managers.testing import simulate
from crawler_lifecycle.managers.types import ClassError


def work() -> None: ...


def starts_and_fails_once() -> list[str]:
    found = [Workflow(name).add("one", work).start().id for name in ("a", "b")]
    if current_job().attempt == 1:
        raise ValueError("once more")
    return found


def test_a_try_again_finds_the_graphs_of_the_one_before() -> None:
    with in_memory() as memory:
        workflow = Workflow("parent").add("s", starts_and_fails_once, max_attempts=2).start()
        assert workflow.wait().state == "completed"
        job = workflow.get_job("s")
        assert (job.attempt, workflow.get_recorded("s")) == (2, [f"{job.key}-1", f"{job.key}-2"])
        graphs = [(one["id"], one["name"]) for one in memory.find(states=(), keys=(), limit=9)]
        assert graphs == [(f"{job.key}-2", "b"), (f"{job.key}-1", "a"), (workflow.id, "parent")]
        assert Workflow(id=f"{job.key}-1").wait().state == "completed"


class Shop(CrawlManager):
    name, spider, loop_mode = "shop", "shop.com", 60

    def finished_ok_hook(self, *_: Any) -> None:
        self.state["key"], self.state["job"] = self.hook_key, Workflow().add("one", work).start().id

    def on_close(self) -> None:
        self.state["close"] = Workflow().add("one", work).start().id


class Loop(Shop):
    def workflow_loop(self) -> Any:
        Workflow().add("one", work).start()
        return super().workflow_loop()


def test_hooks_start_graphs_in_a_simulation_too() -> None:
    with in_memory() as memory:
        state = simulate(Shop).state
        assert (state["key"], state["job"]) == ("manager/1/1/1", "manager.1.1.1-1")
        assert state["close"] == "manager.1.close.1-1"
        assert len(memory.find(states=(), keys=(), limit=9)) == 2
        with pytest.raises(ClassError, match="id: missing, and this method may be executed again"):
            simulate(Loop)


def test_ids_are_derived_within_a_key_alone() -> None:
    assert derived_id() is None
    with once("a/1"):
        assert [derived_id(), derived_id()] == ["a.1-1", "a.1-2"]
        with once(None), pytest.raises(InvalidRequest, match="id: missing"):
            derived_id()
        with once("b"):
            assert derived_id() == "b-1"
        assert derived_id() == "a.1-3"
    assert derived_id() is None
