"""What the scheduler service gives to tasks in addition to the process contract: access to the
gateway.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from crawler_lifecycle import task_tokens
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.scheduler.serve import _child_tasks
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.task_tokens import Purpose, TaskClaim
from crawler_lifecycle.web.listening import Unservable
from tests.support.run_refs import run_ref

KEY = "k" * 32
TASK = QueuedTask(70, 3, {}, attempt=2)
DEPLOYMENT = Deployment(
    run_ref(7),
    2,
    "plain",
    {},
    {},
    [TASK],
    Resources(),
    Limits(),
    datetime(2026, 11, 20, tzinfo=UTC),
)
GATEWAY = {"url": "http://gateway.example:8500/", "task_key": KEY}
UPLOADS = {"kind": "kubernetes", "files_url": "s3://crawls/files"}


def test_a_task_in_a_pod_gets_its_own_way_to_upload_files() -> None:
    made = _child_tasks(Settings.model_validate({"gateway": GATEWAY, "cluster": UPLOADS}))
    assert made is not None
    found = made(DEPLOYMENT, TASK)
    assert found["CRAWL_GATEWAY_URL"] == "http://gateway.example:8500"
    assert (
        found["CRAWL_UPLOAD_URL"]
        == "http://gateway.example:8500/v1/runs/7/tasks/3/attempts/2/files"
    )
    key = KEY.encode()
    claim = TaskClaim(Purpose.FILES, run_ref(7), 3, 2)
    assert task_tokens.verify_task(key, found["CRAWL_UPLOAD_TOKEN"]) == claim
    assert found["CRAWL_LEASES_URL"] == found["CRAWL_UPLOAD_URL"].replace("/files", "/leases")
    claim = TaskClaim(Purpose.LEASES, run_ref(7), 3, 2)
    assert task_tokens.verify_task(key, found["CRAWL_LEASES_TOKEN"]) == claim
    assert task_tokens.verify(KEY.encode(), found["CRAWL_TOKEN"]) == run_ref(7)


def test_where_nothing_is_uploaded_no_task_may() -> None:
    rows: list[dict[str, str]] = [{}, {"files_url": "s3://crawls/files"}, {"kind": "kubernetes"}]
    for cluster in rows:
        made = _child_tasks(Settings.model_validate({"gateway": GATEWAY, "cluster": cluster}))
        assert made is not None, cluster
        assert set(made(DEPLOYMENT, TASK)) == {
            "CRAWL_GATEWAY_URL",
            "CRAWL_TOKEN",
            "CRAWL_LEASES_URL",
            "CRAWL_LEASES_TOKEN",
        }


def test_object_storage_without_a_way_to_it_is_refused_by_name() -> None:
    for gateway, named in [
        ({"url": GATEWAY["url"]}, "LIFECYCLE_GATEWAY__TASK_KEY"),
        ({"task_key": KEY}, "LIFECYCLE_GATEWAY__URL"),
        ({**GATEWAY, "task_key": "short"}, "LIFECYCLE_GATEWAY__TASK_KEY"),
    ]:
        with pytest.raises(Unservable, match=named):
            _child_tasks(Settings.model_validate({"gateway": gateway, "cluster": UPLOADS}))
