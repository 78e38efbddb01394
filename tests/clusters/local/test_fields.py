"""What statistics report in addition to counters: the fields of items, and refused requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import Fixture
from tests.runner.test_runner_command import PRICES, STATS


def test_the_end_of_a_crawl_tells_the_fields_of_its_items(fixture: Fixture) -> None:
    fixture.cluster.deploy(fixture.deployment(), fixture.crawler(PRICES, expect={"stock": 0.5}))
    seen = fixture.until_on_file()
    assert (seen.phase, seen.fields) == (
        Phase.ENDED,
        Coverage(100, {"stock": 0.0, "title": 1.0, "price": 0.41}),
    )


@pytest.mark.parametrize(("said", "believed"), [
    ({"items": 5, "shares": {"a": 7, "b": "1", "c": 0.5}}, Coverage(5, {"c": 0.5})),
    ({"items": -5, "shares": {"c": 0.5}}, None),
    ([1], None),
    ({"items": 5, "shares": {f"f{n}": 1 for n in range(10_000)}}, Coverage(5, {f"f{n}": 1 for n in range(30)})),
], ids=range(4))  # fmt: skip
def test_a_summary_that_lies(fixture: Fixture, said: Any, believed: Coverage | None) -> None:
    fixture.deploy("")
    fixture.until_on_file()
    summary = fixture.folder() / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "fields": said}))
    seen = fixture.poll()
    assert (seen.phase, seen.fields) == (Phase.ENDED, believed)


def test_refused_requests_are_observed(fixture: Fixture) -> None:
    told = {"blocked": [{"host": "shop.example", "status": 429, "retry_after": 20}, {"host": 1}, 7]}
    fixture.deploy(f"{STATS}write({told})")
    seen = fixture.until_on_file()
    assert (seen.phase, seen.blocked) == (Phase.ENDED, (BlockReport("shop.example", 429, 20),))
