"""Answers of a gateway, as its API gives them."""

from __future__ import annotations

from typing import Any

import httpx

RUN: dict[str, Any] = {
    "run_id": 7,
    "request_id": "nightly-7",
    "crawler": "operations",
    "trigger": "manual",
    "status": "PROCESSING",
    "stage": "reconciliation",
    "attempt": 1,
    "created_at": "2026-11-20T11:50:00Z",
    "updated_at": "2026-11-20T11:59:58Z",
    "owner_workflow_id": "crawl/operations/nightly-7",
    "owner_run_id": "0190",
    "outcome": None,
    "cause": None,
    "request": {
        **{
            "crawler": "operations",
            "args": {"letters": "a-f", "q": "two words"},
            "settings": {"DOWNLOAD_DELAY": "0.5"},
        },
        **{"limits": {"run_timeout_s": 90.0, "stall_timeout_s": 3600.0, "force_stop_after_s": None}, "tags": ["night"]},
        **{"resources": {"cpu": None, "memory": "1Gi"}, "flow_id": "f-1"},
    },
    "multi": True,
    "stop": None,
    "waiting": None,
    "waiting_for": None,
    "waiting_since": None,
    "look_error": None,
    "look_error_since": None,
    "verified_at": "2026-11-20T11:59:57Z",
    "next_look_at": "2026-11-20T12:02:00Z",
    "pages": 4120,
    "pages_per_minute": 412.0,
    "last_progress_at": "2026-11-20T11:59:58Z",
    "items": 3977,
    "errors": 2,
    "started_at": "2026-11-20T11:50:04Z",
    "ended_at": None,
}
COMPLETED = RUN | {
    "status": "COMPLETED",
    "stage": "completion",
    "outcome": "finished",
    "cause": "All 2 tasks succeeded",
    "ended_at": "2026-11-20T11:59:58Z",
    "next_look_at": None,
}
FAILED = COMPLETED | {
    "status": "FAILED",
    "outcome": "killed by oom",
    "cause": "Out of memory (limit 512Mi), exit 137",
}
RESUMED = RUN | {"status": "INITIALIZING", "stage": "initiation", "attempt": 2, "owner_run_id": None}
STOPPED = COMPLETED | {
    "status": "FAILED",
    "outcome": "cancelled",
    "cause": "Stopped by eve: wrong site",
    "stop": {
        "requested_at": "2026-11-20T11:58:00Z",
        "requested_by": "eve",
        "reason": "wrong site",
        "force": False,
        "limit": None,
        "escalated": False,
    },
}
TASKS: list[dict[str, Any]] = [
    {
        "task_id": 70,
        "run_id": 7,
        "attempt": 1,
        "task_index": 0,
        "status": "SUCCEEDED",
        "outcome": "finished",
        "cause": None,
        "reason": None,
        "args": {"letters": "a-f"},
        "exit_code": 0,
        "exit_signal": None,
        "pages": 4000,
        "pages_per_minute": 800.0,
        "items": 3900,
        "errors": 0,
        "started_at": "2026-11-20T11:50:04Z",
        "ended_at": "2026-11-20T11:55:04Z",
    },
    {
        "task_id": 71,
        "run_id": 7,
        "attempt": 1,
        "task_index": 1,
        "status": "FAILED",
        "outcome": "failed",
        "cause": "Killed by signal 9, which nobody of us sent\x1b[2J",
        "reason": None,
        "args": {"letters": "g-z"},
        "exit_code": None,
        "exit_signal": 9,
        "pages": 120,
        "pages_per_minute": None,
        "items": 77,
        "errors": 2,
        "started_at": "2026-11-20T11:50:05Z",
        "ended_at": "2026-11-20T11:59:57.500Z",
    },
]
CORRECTION: dict[str, Any] = {
    "id": 1,
    "run_id": 7,
    "task_id": 71,
    "attempt": 1,
    "kind": "killed",
    "believed": "RUNNING",
    "believed_since": "2026-11-20T11:50:05Z",
    "truth": "FAILED",
    "truth_since": "2026-11-20T11:59:57.500Z",
    "found_by": "look",
    "lag_ms": 1800,
    "evidence": {"signal": 9},
    "created_at": "2026-11-20T11:59:59.300Z",
}
TRANSITION: dict[str, Any] = {
    "key": "transition:12",
    "at": "2026-11-20T11:59:59.300Z",
    "kind": "task",
    "text": "Task 71 (index 1) became FAILED: killed by signal 9; recorded 1.8 s after it happened",
    "attempt": 1,
    "task_id": 71,
    "seq": 12,
    "from_status": "RUNNING",
    "to_status": "FAILED",
    "cluster_time": "2026-11-20T11:59:57.500Z",
    "committed_at": "2026-11-20T11:59:59.300Z",
    "lag_ms": 1800,
    "source": "look",
    "evidence": {"signal": 9},
    "record": None,
}
EXPORT: dict[str, Any] = {
    "attempt": 1,
    "status": "exported",
    "url": "file:///archive/7/1/supporting-files.zip",
    "bytes": 246_995,
    "files": 32,
    "sha256": "849c68addf1ea013ba79cf1add8ddd693d4bc350807249dc0de1d82acadf9452",
    "error": None,
    "at": "2026-11-20T11:59:59Z",
}
DELIVERY: dict[str, Any] = {
    "seq": 16,
    "type": "run.ended",
    "attempt": 1,
    "sink": "eventbridge",
    "status": "failed",
    "tries": 3,
    "error": "the bus is away",
    "delivered_at": None,
}
HAPPENED: dict[str, Any] = dict.fromkeys(TRANSITION) | {
    "key": "export:1",
    "at": "2026-11-20T11:59:59Z",
    "kind": "export",
    "text": "Supporting files archived: 32 files",
    "attempt": 1,
    "record": EXPORT,
}
AUDIT: dict[str, Any] = {
    "audit_id": "0190-audit",
    "started_at": "2026-11-20T11:59:58Z",
    "ended_at": "2026-11-20T11:59:59Z",
    "repair": False,
    "looked": {"cluster_tasks": 1204, "open_runs": 88, "open_workflows": 87, "ended_runs": 1310},
    "found": {"orphan": 1, "no_workflow": 1, "undelivered": 1, "unreadable": 1},
    "repaired": {"undelivered": 1},
    "left": 3,
    "findings": [
        {
            "kind": "orphan",
            "detail": "task 0 of run 4711, attempt 1, executes, and the database knows no such task",
            "run_id": 4711,
            "task_id": None,
            "workflow_id": None,
            "repair": None,
            "repaired": False,
            "due_at": "2026-11-20T12:04:30Z",
        },
        {
            "kind": "no_workflow",
            "detail": "run 7 (operations) is PROCESSING, but its workflow 'crawl/operations/nightly-7' was terminated",
            "run_id": 7,
            "task_id": None,
            "workflow_id": "crawl/operations/nightly-7",
            "repair": None,
            "repaired": False,
            "due_at": "2026-11-20T11:58:00Z",
        },
        {
            "kind": "undelivered",
            "detail": "run 6 (operations) is FAILED, and not delivered: the event run.ended",
            "run_id": 6,
            "task_id": None,
            "workflow_id": "crawl/operations/nightly-6",
            "repair": "sent again by workflow crawl-export/6/1",
            "repaired": True,
            "due_at": None,
        },
        {
            "kind": "unreadable",
            "detail": "run_history run_id 3: status is 'DANCING', which cannot be",
            "run_id": 3,
            "task_id": None,
            "workflow_id": None,
            "repair": None,
            "repaired": False,
            "due_at": None,
        },
    ],
    "troubles": [],
}
CRAWLER: dict[str, Any] = {
    "name": "operations",
    "kind": "scrapy",
    "project": "crawlers",
    "args": {"site": {"default": "http://127.0.0.1:8400", "required": False}, "letters": {"required": True}},
    "resumable": True,
    "settings": {"DOWNLOAD_DELAY": "0.1"},
}


def problem(status: int, code: str, detail: str, *errors: dict[str, str]) -> httpx.Response:
    """A problem document."""
    body = {"type": f"urn:x:{code}", "title": code, "status": status, "detail": detail, "code": code}
    return httpx.Response(
        status, json=body | {"errors": list(errors)}, headers={"content-type": "application/problem+json"}
    )


MANAGER: dict[str, Any] = {
    "manager_id": 3,
    "name": "shops",
    "flow_id": "nightly-7",
    "workflow_id": "manager/shops/nightly-7",
    "plan": "crawler_lifecycle.managers.built_in:RunEach",
    "crawler": "operations",
    "argv": ["operations", "--max-running-jobs", "20"],
    "status": "PROCESSING",
    "outcome": None,
    "cause": None,
    "attempt": 1,
    "live": 20,
    "cap": None,
    "paused": False,
    "waiting": "20 of 20 runs are live",
    "error": None,
    "stop": None,
    "leave": False,
    "jobs": {
        **{"buffered": 0, "delayed": 0, "queued": 1400, "starting": 2, "started": 18, "ended": 612},
        **{"yields": 2032, "duplicates": 9, "skipped": 1, "scheduled": 632, "retried": 14, "good": 601, "bad": 11},
    },
    "position": 0,
    "exhausted": False,
    "sealed": True,
    "close_reason": None,
    "tags": ["night"],
    "requested_by": "tester",
    "parent": None,
    "created_at": "2026-11-20T11:50:00Z",
    "started_at": "2026-11-20T11:50:01Z",
    "ended_at": None,
    "updated_at": "2026-11-20T11:59:58Z",
    "jobs_pruned_at": "2026-08-20T12:00:00Z",
    "state": {"page": 3},
    "stats": {"scheduled/total": 632},
    "generation": 1,
    "fingerprint": None,
}
MANAGER_ENDED = MANAGER | {
    "status": "FAILED",
    "outcome": "cancelled",
    "cause": "Stopped by eve: wrong list\x1b[2J",
    "live": 0,
    "waiting": None,
    "ended_at": "2026-11-20T11:59:58Z",
}
JOB: dict[str, Any] = {
    "item_id": 41,
    "state": "ended",
    "seq": 12,
    "retry": 1,
    "position": None,
    "job": {"spider": "operations", "spider_args": {"letters": "a-f"}, "job_settings": {}, "tags": ["night"]},
    "run_id": 7,
    "outcome": "finished",
    "error": None,
}
LEFT_OUT = JOB | {
    **{"item_id": 42, "state": "skipped", "seq": None, "retry": 0, "job": None, "run_id": None, "outcome": None},
    "error": "position 13: set_parameters_gen yielded 7, which is no dict; yield a dict of parameters",
}
PLAN: dict[str, Any] = {
    "plan": "shops.managers:ShopsManager",
    "kind": "manager",
    "name": "shops",
    "description": "Every shop once a night",
    "options": [],
    "error": None,
    "fingerprint": "f1",
    "seen_at": "2026-11-20T11:59:50Z",
    "served": True,
}
