"""The ends that the history of a pod allows, by the table of docs/lifecycle.md, computed again from
the record alone.

The result is a set, because a stop and an end, or a deletion and an end, may happen within the same
second, and then nobody can tell which of them was first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler_lifecycle.domain.clocks import CLOCK_MARGIN
from tools.soak.kubernetes.record import Json, PodStory, Version, is_over, moment, state

SECOND = timedelta(seconds=1)
#: Reasons of a container runtime that do not tell how the container ended.
FORGOTTEN = ("ContainerStatusUnknown", "Unknown")
#: Exit codes of processes that received a stop.
TOLD = (11, 13, 137, 143)
Ending = tuple[str, str]
INTERRUPTED, EVICTED = ("FAILED", "interrupted"), ("FAILED", "evicted")


@dataclass(frozen=True, slots=True)
class Stops:
    """The requests for a task's run since the task was deployed."""

    earliest: datetime | None = None
    """No stop can have been recorded before."""
    certain: datetime | None = None
    """By then a stop was on record that nothing has cleared."""
    limits: frozenset[str] = frozenset()
    """Outcomes of the run's own limits."""


def allowed(pod: PodStory, stops: Stops, *, runner: bool) -> set[Ending]:
    """Return every (status, outcome) that may be recorded for this pod's end."""
    found: set[Ending] = set()
    for version, told in pod.there:
        if is_over(told):
            found |= _of_version(pod, version, told, stops, runner)
    return found


def _of_version(
    pod: PodStory, version: Version, told: Json, stops: Stops, runner: bool
) -> set[Ending]:
    done = state(told).get("terminated")
    said = _said(done)
    code = exit_of(done)
    own = _own(done, said, code, runner and "own_exit" not in _summary(done))
    if code == 0 and said == "finished":
        return {own}  # whatever else happened to the pod
    marks = set(_marks(told))
    over = pod.over
    assert over is not None
    before = {m for v, o in pod.there if v.revision < over.revision for m in _marks(o)}
    found: set[Ending] = set()
    by_itself = _by_itself(done, said, code)
    if done is not None and done.get("reason") == "OOMKilled":
        found.add(("FAILED", "killed by oom"))
    else:
        found |= marks
        # A mark that came with the end or after it, or that the crawler ignored, may have had no
        # effect.
        if not before or by_itself or own[0] == "SUCCEEDED":
            found.add(own)
        if by_itself and _summary(done).get("told_to_stop") is False:
            return {own}  # The runner reported this, and later events had no effect.
    at = _ended_at(done, over)
    if stops.earliest is not None and at + SECOND >= stops.earliest.replace(microsecond=0):
        asked = {("CANCELLED", "cancelled"), ("CANCELLED", "cancel_timeout")}
        if stops.certain is not None and at > stops.certain + 2 * SECOND:
            near = by_itself and at <= stops.certain + CLOCK_MARGIN
            found = asked | ({own} if near else set())
        else:
            found |= asked
    elif stops.earliest is not None and before and (said in (None, "shutdown") or code in TOLD):
        # If a stop was requested after a pod was told to end, nobody can tell who caused the end,
        # because clocks may differ.
        found |= {("CANCELLED", "cancelled"), ("CANCELLED", "cancel_timeout")}
    if stops.limits:
        found |= {("FAILED", limit) for limit in stops.limits}
    return found


def _by_itself(done: Json | None, said: str | None, code: int | None) -> bool:
    """Return whether the runner reported that the crawler ended by itself."""
    summary = _summary(done)
    if "runner" not in summary or code is None:
        return False
    if summary.get("told_to_stop") is False:
        return code not in (137, 143)
    return code not in TOLD and said != "shutdown"


def _ended_at(done: Json | None, over: Version) -> datetime:
    return moment(done["finishedAt"]) if done is not None else over.seen_at


def exit_of(done: Json | None) -> int | None:
    """Return the reliable exit code, if any."""
    if done is None or (done.get("reason") in FORGOTTEN and done["exitCode"] in (137, 255)):
        return None
    summary = _summary(done)
    if (
        done["exitCode"] == 137
        and done.get("reason") == "Error"
        and "finish_reason" in summary
        and "exit" in summary
    ):
        return int(summary["exit"])  # killed between its last report and its exit
    return int(done["exitCode"])


def _summary(done: Json | None) -> Json:
    try:
        said = json.loads((done or {}).get("message") or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _said(done: Json | None) -> str | None:
    reason = _summary(done).get("finish_reason")
    return str(reason) if reason is not None else None


def _marks(told: Json) -> Iterator[Ending]:
    """Return whether somebody or something else ended the pod, or was about to."""
    status = told["status"]
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            api = condition.get("reason") in ("EvictionByEvictionAPI", "PreemptionByScheduler")
            yield EVICTED if api or status.get("reason") == "Evicted" else INTERRUPTED
    if "deletionTimestamp" in told["metadata"]:
        yield INTERRUPTED
    done = state(told).get("terminated") or {}
    if done.get("reason") in FORGOTTEN:
        yield INTERRUPTED


def _own(done: Json | None, said: str | None, code: int | None, runner: bool) -> Ending:
    """Return the end that nobody else influenced."""
    if code == 0 and said == "finished":
        return "SUCCEEDED", "finished"
    if done is None:
        return "FAILED", "failed"
    if code in (11, 13) and _summary(done).get("told_to_stop"):
        return INTERRUPTED
    if said == "shutdown":
        return "FAILED", "failed"
    if code == 3 and runner:
        return "FAILED", "diskusage_exceeded"
    if code == 0 and said:
        return ("FAILED" if said in ("memusage_exceeded", "start_error") else "SUCCEEDED"), said
    if code == 0:
        return ("FAILED", "failed") if runner else ("SUCCEEDED", "finished")
    return "FAILED", said or "failed"
