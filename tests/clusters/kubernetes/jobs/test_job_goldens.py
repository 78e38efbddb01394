"""Complete Jobs, so that somebody reviews every change in what is sent to clusters."""

from __future__ import annotations

import json

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from crawler_lifecycle.clusters.kubernetes.jobs.manifest import secret_for
from tests.support.job_cases import cases


class _Json(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "json"


def _text(made: object) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", cases())
def test_the_job(name: str, snapshot: SnapshotAssertion) -> None:
    assert _text(cases()[name].job()) == snapshot(extension_class=_Json)


def test_the_secret_of_a_task(snapshot: SnapshotAssertion) -> None:
    made = secret_for("crawl-7-0-1", "0f1e2d3c", {"CRAWL_TOKEN": "task.7.x"})
    assert _text(made) == snapshot(extension_class=_Json)
