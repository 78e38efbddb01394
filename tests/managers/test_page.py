"""docs/managers.md and the related page: their examples do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from crawler_lifecycle import managers
from crawler_lifecycle.features.managers.store.rows import job_metadata
from tests.domain.test_scrapy_cloud import run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "managers.md").read_text(encoding="utf-8")
MOVED = (DOCS / "managers.md").read_text(encoding="utf-8")


def test_its_class_does_what_its_test_says() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/managers.md", "exec"), names)
    assert names["record"].scheduled


def test_it_names_every_class_that_moves() -> None:
    [table] = re.findall(
        r"^## A class that comes from Scrapy Cloud\n(.*?)\nThen put",
        MOVED,
        re.DOTALL | re.MULTILINE,
    )
    assert {name for name in managers.__all__ if f"`{name}`" not in table} == set()


def test_it_tells_every_key_of_the_metadata() -> None:
    [table] = re.findall(r"^## Metadata\n(.*?)\n## ", PAGE, re.DOTALL | re.MULTILINE)
    rows = [line.split(": ")[0] for line in table.splitlines() if line.startswith("- `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == job_metadata(
        run()
    ).keys()


def test_attributes_that_it_names_have_these_defaults() -> None:
    cls = managers.GeneratorCrawlManager
    assert (cls.retry_delay, cls.retry_delay_factor, cls.retry_delay_max) == (0, 2, 3600)
    assert (cls.on_item_error, cls.on_code_change, cls.on_hook_error) == ("stop", "replay", "fail")
    assert (cls.max_per_key, cls.max_jobs_per_spider) == (None, None)
