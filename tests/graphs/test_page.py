"""docs/graphs.md and related pages: their examples do what the pages say."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.features.graphs.domain.spec import StepSpec, StepState
from crawler_lifecycle.graphs.testing import in_memory
from examples.graphs import WALKS, nightly, titles

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "graphs.md").read_text(encoding="utf-8")
COMPARED = (DOCS / "graphs.md").read_text(encoding="utf-8")


def test_its_graph_does_what_its_test_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    (tmp_path / "page_of_graphs.py").write_text("".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("page_of_graphs").status.state == "completed"


def test_options_that_it_names_have_these_defaults() -> None:
    known = {one.name: one.default for one in fields(StepSpec)}
    assert (known["timeout_s"], known["max_attempts"], known["backoff_s"], known["priority"]) == (
        60,
        1,
        1,
        0,
    )
    [items] = re.findall(
        r"^A step has these options.*?\n\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE
    )
    told = set(
        re.findall(r"`(\w+)`", "\n".join(line.split(" (")[0] for line in items.splitlines()))
    )
    assert told == set(known) - {"path", "kind", "job", "deps", "graft"}


def test_it_has_every_state_in_both_vocabularies() -> None:
    [table] = re.findall(r"^## Two vocabularies\n(.*?)\n## ", COMPARED, re.DOTALL | re.MULTILINE)
    assert {state for state in StepState if f"`{state}`" not in table} == set()


def test_the_graph_of_the_walk_is_as_the_page_says() -> None:
    paths = [step.path for step in nightly().spec().steps]
    assert paths == ["look", "walks", *(f"walks/{pages}" for pages in WALKS), "report", "publish"]


def test_the_graph_over_items_is_as_the_page_says() -> None:
    def found(job: Mapping[str, Any]) -> dict[str, Any]:
        site = job["args"].get("site", "http://site/")
        return {
            "outcome": "finished",
            "items": [{"url": f"{site}{n}/", "title": f"page {n}"} for n in (2, 1)],
        }

    with in_memory(crawls=found):
        workflow = titles().start()
        assert workflow.wait().state == "completed"
        assert {job.path for job in workflow.all_jobs()} >= {"pages/_1_", "pages/_2_"}
        assert len(workflow.get_recorded("merge")) == 4
        assert workflow.get_recorded("publish") == "page 1\npage 2"
