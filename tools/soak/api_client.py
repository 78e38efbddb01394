"""The gateway as strangers knock at it, and what has not come to its end behind it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.harness import TERMINAL
from tools.soak.harness import ANSWER_S, SoakHarness

Document = dict[str, Any]
#: Workflows that last: audits come again and again, and a webhook has one for as long as it is
#: there.
ENDLESS = ("CrawlAuditWorkflow", "CrawlWebhookWorkflow")
#: After the faults have ended everything must have ended within so many seconds, and nobody asks
#: for an audit.
SETTLE_S = 90.0
#: A client that gets no answer gives up after so many seconds.
ASKS_S = 300.0


@dataclass(frozen=True)
class Told:
    """What somebody asked for, and the answer."""

    what: str
    sent: float
    """When it was asked for the first time."""
    at: float
    status: int | None
    """Of the answer; ``None``: there was none."""
    answer: Document = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        return self.status is not None and 400 <= self.status < 500

    def __str__(self) -> str:
        return f"{self.what}: {self.status} {json.dumps(self.answer)[:300]}"


class ApiClient:
    """The gateway, as strangers knock at it."""

    def __init__(self, gateway: Callable[[], str]) -> None:
        self._gateway = gateway

    def ask(
        self, method: str, path: str, body: Document | None = None, key: str | None = None
    ) -> Told:
        """Ask once."""
        sent, headers = (
            time.time(),
            {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {}),
        )
        # ASCII with escapes: also what is no UTF-8, such as half of a pair of surrogates.
        content = json.dumps(body or {}).encode()
        try:
            url = f"{self._gateway()}{path}"
            got = httpx.request(
                method, url, content=content, headers=headers, timeout=ANSWER_S, trust_env=False
            )
            told = got.json() if got.content else {}
        except (httpx.HTTPError, ValueError) as error:
            return Told(f"{method} {path}", sent, time.time(), None, {"error": str(error)[:200]})
        return Told(
            f"{method} {path}",
            sent,
            time.time(),
            got.status_code,
            told if isinstance(told, dict) else {},
        )

    def until_told(
        self, method: str, path: str, body: Document | None = None, key: str | None = None
    ) -> Told:
        """Ask until somebody says yes or no: a service that is away says neither."""
        end, first = time.monotonic() + ASKS_S, time.time()
        while True:
            told = self.ask(method, path, body, key)
            if told.status not in (None, 429, 502, 503, 504) or time.monotonic() > end:
                return Told(told.what, first, told.at, told.status, told.answer)
            time.sleep(1.0)


def left(harness: SoakHarness) -> list[str]:
    """What has not come to its end: workflows, runs, managers, graphs, and lines of due times."""
    workflows = harness.cli_list(f"ExecutionStatus='Running' AND WorkflowType NOT IN {ENDLESS}")
    found = [f"the workflow {one['execution']['workflowId']} is open" for one in workflows]
    found += [f"run {run_id} is open" for run_id in harness.open_runs()]
    rows = harness.query(
        f"SELECT manager_id, status, waiting_for, error FROM manager WHERE status NOT IN {TERMINAL}"
    )
    found += [
        f"manager {one} is {status}, waits for {why}, {error}" for one, status, why, error in rows
    ]
    rows = harness.query(
        "SELECT graph_key, state, waiting_for FROM graph WHERE state IN ('draft', 'executing')"
    )
    found += [f"graph {key!r} is {state}, waits for {why}" for key, state, why in rows]
    rows = waiting(harness)
    return found + [
        f"the due time {one} ({at}) is {decision} without a target" for one, at, decision in rows
    ]


def waiting(harness: SoakHarness) -> list[tuple[Any, ...]]:
    """Due times that are to begin something, and have not."""
    begins = "decision IN ('started', 'queued') AND target_id IS NULL"
    return harness.query(f"SELECT due_id, due_at, decision FROM schedule_due WHERE {begins}")


def open_tasks(harness: SoakHarness) -> list[tuple[Any, ...]]:
    """Tasks that have not ended. Those of a full pool run one after the other."""
    sql = "SELECT task_id FROM task_history WHERE superseded_by IS NULL AND status NOT IN "
    return harness.query(f"{sql} ('SUCCEEDED', 'FAILED', 'CANCELLED', 'LOST')")


def settled(
    harness: SoakHarness,
    seconds: float = SETTLE_S,
    in_line: Callable[[SoakHarness], list[tuple[Any, ...]]] = waiting,
) -> list[str]:
    """Wait until nothing is left; what is left after so long.

    What is ``in_line`` comes one after the other, such as due times that wait for each other's
    verdicts: each that leaves the line gives the others this time anew."""
    end, fewest = time.monotonic() + seconds, len(in_line(harness))
    while found := left(harness):
        if (now := len(in_line(harness))) < fewest:
            end, fewest = time.monotonic() + seconds, now
        if time.monotonic() > end:
            return [f"{seconds:g} s after the faults ended {text}" for text in found]
        time.sleep(1.0)
    return []
