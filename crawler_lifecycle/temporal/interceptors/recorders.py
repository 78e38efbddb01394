"""Metrics and log lines about finished activities, made from their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.cancellation import RecordStop
from crawler_lifecycle.activities.completion import RunEnded
from crawler_lifecycle.activities.initiation import CreateHistory
from crawler_lifecycle.activities.meters import count, measure
from crawler_lifecycle.activities.reconciliation import LookAnswer, LookOrder
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.runs import Fence, RunHandle

log = logging.getLogger(__name__)


def completed(name: str, order: object, answer: object, seconds: float) -> None:
    """An activity answered ``order`` after ``seconds``."""
    recorder = _RECORDERS.get(name)
    if recorder is not None:
        recorder(order, answer, seconds)


def failed(name: str, error: BaseException) -> None:
    """A try of an activity failed; the line about it is the SDK's."""
    if meters.expected(error):
        return
    count(meters.FAILURES, activity=name, error=meters.error_class(error))
    if name == "get_history_statuses_to_sync":
        count(meters.LOOKS, result="failed")
    if name == "export_supporting_files":
        count(meters.EXPORTS, result="failed")


def _began(_: CreateHistory, handle: RunHandle, __: float) -> None:
    count(meters.RUNS_STARTED, trigger=str(handle.request.trigger), resumed=str(handle.resumed).lower())
    about = {"run_id": handle.run_id, "attempt": handle.attempt}
    crawler = handle.request.crawler
    log.info("run %d begins: attempt %d of crawler %s", handle.run_id, handle.attempt, crawler, extra=about)


def _ended(_: Fence, ended: RunEnded, __: float) -> None:
    count(meters.RUNS_ENDED, status=str(ended.status), outcome=meters.outcome_class(ended.outcome))
    log.info("run ended %s / %s: %s", ended.status, ended.outcome, ended.cause)


def _looked(_: LookOrder, answer: LookAnswer, __: float) -> None:
    count(meters.LOOKS, result="ok")
    measure(meters.LOOK_TIME, answer.seconds)


def _stopped(order: RecordStop, _: object, __: float) -> None:
    for heard in order.heard:
        intent = heard.intent
        kind = "limit" if intent.limit is not None else "forced" if intent.force else "graceful"
        count(meters.STOPS, kind=kind)
        why = intent.limit or intent.reason or "no reason given"
        log.info("stop (%s) by %s: %s", kind, intent.requested_by or "unnamed", why)


def _exported(_: Fence, result: ExportResult | None, seconds: float) -> None:
    count(meters.EXPORTS, result="empty" if result is None else "exported")
    if result is not None:
        count(meters.EXPORT_BYTES, result.bytes)
        measure(meters.EXPORT_TIME, seconds)


_RECORDERS: dict[str, Callable[[Any, Any, float], None]] = {
    "create_history_id": _began,
    "update_run_status": _ended,
    "get_history_statuses_to_sync": _looked,
    "record_stop": _stopped,
    "export_supporting_files": _exported,
}
