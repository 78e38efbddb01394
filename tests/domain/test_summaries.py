"""Summaries of workflows, derived from the ids that our own code gives them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.due_ids import due_request_id, due_workflow_id
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.summaries import BYTES_MAX, summary_of
from crawler_lifecycle.features.webhooks.domain.definition import webhook_workflow_id

AT = datetime(2026, 11, 22, 1, 30, tzinfo=UTC)
RUN = RunRef(7, "0b5c1a")
DUE_RUN = names.attempt_workflow_id("books", due_request_id("nightly", AT), 2)


@pytest.mark.parametrize(
    ("workflow_id", "summary"),
    [
        (names.workflow_id("books", "any/request"), "books"),
        (DUE_RUN, "books · schedule nightly"),
        (names.manager_workflow_id("shops", "f/1"), "manager shops · flow f/1"),
        (names.graph_workflow_id("catalogue.17"), "graph catalogue.17"),
        (names.graph_batch_workflow_id("a/b", 12), "graph a/b · call 12"),
        (due_workflow_id("night-ly", AT), "schedule night-ly · due 2026-11-22T01:30:00Z"),
        (webhook_workflow_id("portal"), "webhook portal"),
        ("crawl-audit/repair", "audit · repair"),
        (names.export_workflow_id(RUN, 3), "run 7 · export of attempt 3"),
        (names.deletion_workflow_id(RUN), "run 7 · deletion"),
        (
            names.event_workflow_id(names.ended_key("graph", 9, "uid", 1)),
            "graph 9 · event of its end",
        ),
        ("of/somebody else", "of/somebody else"),
    ],
)
def test_each_id_has_its_words(workflow_id: str, summary: str) -> None:
    assert summary_of(workflow_id) == summary


def test_that_of_a_run_begins_with_its_number() -> None:
    assert summary_of("crawl/books/any", 7) == "run 7 · books"


@pytest.mark.parametrize("text", ["x", "é", "\U0001f577", '"', "\n"])
def test_none_is_too_long_for_the_server(text: str) -> None:
    summary = summary_of(names.graph_workflow_id(text * 255))
    assert summary.startswith(f"graph {text}")
    assert BYTES_MAX - 12 < len(json.dumps(summary)) <= BYTES_MAX
