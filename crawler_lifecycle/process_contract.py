"""The process contract: the environment variables of a task's process on every cluster
(docs/contract.md), and the record of a task that is read from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, given_to_task
from crawler_lifecycle.domain.due_ids import due_text
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRecord


def contract_of(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask
) -> dict[str, str]:
    """Return the variables that do not depend on the cluster.

    Raises ``InvalidRequest`` for invalid arguments and settings.
    """
    args, settings = given_to_task(crawler, deployment.args, deployment.settings, task.args)
    request_id = deployment.record.get("request_id")
    return {
        "CRAWL_RUN_ID": str(deployment.run_id),
        "CRAWL_RUN_UID": deployment.run.uid,
        **({"CRAWL_REQUEST_ID": str(request_id)} if request_id else {}),
        "CRAWL_TASK_ID": str(task.task_id),
        "CRAWL_TASK_INDEX": str(task.index),
        "CRAWL_ATTEMPT": str(task.attempt),
        "CRAWL_CRAWLER": crawler.name,
        "CRAWL_ARGS": json.dumps(args),
        "CRAWL_SETTINGS": json.dumps(settings),
        "CRAWL_RESUME": "1" if (deployment.resume or task.retry) and crawler.resumable else "0",
        "CRAWL_STOP_SIGNAL": crawler.stop_signal,
        "CRAWL_STOP_GRACE_S": f"{deployment.limits.stop_grace_s:.15g}",
        **({} if deployment.code is None else {"CRAWL_CODE_DIGEST": str(deployment.code.digest)}),
        **({} if deployment.due_at is None else {"CRAWL_DUE_AT": due_text(deployment.due_at)}),
        **(
            {}
            if crawler.items is True
            else {"CRAWL_ITEMS": json.dumps(crawler.items) if crawler.items else "off"}
        ),
        **(
            {"CRAWL_FIELDS": json.dumps(list(fields))} if (fields := crawler.expected.parts) else {}
        ),
    }


def recorded_task(contract: Mapping[str, Any], record: object, **more: Any) -> TaskRecord:
    """Return the record of a task that has these variables. ``record`` is what was stored with it,
    which is left out if it is not a mapping, and ``more`` are its other fields.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` and ``RecursionError`` for variables that are
    not ours.
    """
    return TaskRecord(
        index=int(contract["CRAWL_TASK_INDEX"]),
        attempt=int(contract["CRAWL_ATTEMPT"]),
        task_id=int(contract["CRAWL_TASK_ID"]),
        crawler=str(contract["CRAWL_CRAWLER"]),
        args=dict(json.loads(contract["CRAWL_ARGS"])),
        settings=dict(json.loads(contract["CRAWL_SETTINGS"])),
        record=record if isinstance(record, dict) else {},
        **more,
    )
