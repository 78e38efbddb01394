"""The gateway as its clients use it, and everything behind the gateway that has not ended."""

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
#: Workflows that do not end: audits are repeated, and a webhook has a workflow as long as it
#: exists.
ENDLESS = ("CrawlAuditWorkflow", "CrawlWebhookWorkflow")
#: The seconds after the last fault within which everything must have ended. Nobody requests an
#: audit for this.
SETTLE_S = 90.0
#: The seconds after which a client without an answer gives up.
ASKS_S = 300.0


@dataclass(frozen=True)
class Told:
    """A request, and its answer."""

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
    """The gateway, as its clients use it."""

    def __init__(self, gateway: Callable[[], str]) -> None:
        self._gateway = gateway

    def ask(
        self, method: str, path: str, body: Document | None = None, key: str | None = None
    ) -> Told:
        """Send a request once."""
        sent, headers = (
            time.time(),
            {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {}),
        )
        # The body is ASCII with escapes, so that it can contain text that is not valid UTF-8, such
        # as half of a surrogate pair.
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
        """Repeat a request until it is accepted or refused. A service that is down does neither."""
        end, first = time.monotonic() + ASKS_S, time.time()
        while True:
            told = self.ask(method, path, body, key)
            if told.status not in (None, 429, 502, 503, 504) or time.monotonic() > end:
                return Told(told.what, first, told.at, told.status, told.answer)
            time.sleep(1.0)


def left(harness: SoakHarness) -> list[str]:
    """Return everything that has not ended: workflows, runs, managers, graphs, and firings."""
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
    """Return the due times that should start something, but have not done so."""
    begins = "decision IN ('started', 'queued') AND target_id IS NULL"
    return harness.query(f"SELECT due_id, due_at, decision FROM schedule_due WHERE {begins}")


def open_tasks(harness: SoakHarness) -> list[tuple[Any, ...]]:
    """Return the tasks that have not ended. The tasks of a full pool execute one after the other."""
    sql = "SELECT task_id FROM task_history WHERE superseded_by IS NULL AND status NOT IN "
    return harness.query(f"{sql} ('SUCCEEDED', 'FAILED', 'CANCELLED', 'LOST')")


def settled(
    harness: SoakHarness,
    seconds: float = SETTLE_S,
    in_line: Callable[[SoakHarness], list[tuple[Any, ...]]] = waiting,
) -> list[str]:
    """Wait until nothing is left, and return what is left after this time.

    Entries of ``in_line`` are processed one after the other, such as due times that wait for each
    other's verdicts. Each entry that is completed restarts the time for the others.
    """
    end, fewest = time.monotonic() + seconds, len(in_line(harness))
    while found := left(harness):
        if (now := len(in_line(harness))) < fewest:
            end, fewest = time.monotonic() + seconds, now
        if time.monotonic() > end:
            return [f"{seconds:g} s after the faults ended {text}" for text in found]
        time.sleep(1.0)
    return []
