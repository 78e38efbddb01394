"""``python -m tools.soak.growth --days D --seed N`` checks whether the pruning of a day removes as
many rows as a day adds.

Days are short. Each day has the same load of runs, managers, graphs, firings and webhook
deliveries, and ends with ``crawlctl db prune`` for everything that ended more than two such days
ago. From the fourth day on, each table must lose as many rows as it gained, except rows that the
rules keep forever (``domain/retention.py``).

The load follows the machine: new work begins when enough has ended, and a day is over when all of
its work has ended. Therefore, a slow machine has longer days with the same rows, and each row
belongs to exactly one day.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.cli.admin.db_prune import Pruning
from crawler_lifecycle.domain.retention import GOES, Stays
from crawler_lifecycle.store.retention.pruning import open_pruner
from tests.e2e.harness import QUICK, TERMINAL, until
from tests.support.faulty_http import serving
from tests.support.mariadb import running_mariadb
from tests.support.receiver import ENVIRONMENT, Receiver
from tools.soak.api_client import ApiClient, open_tasks, settled
from tools.soak.harness import DURABLE, SoakHarness
from tools.soak.strikes import say, verdict

#: The days for which details are kept. Days are compared from the day after the next one on.
KEPT_DAYS, STEADY = 2, 4
#: The load of one day.
RUNS, MANAGERS, GRAPHS, FIRINGS = 12, 1, 2, 4
#: New work begins when fewer than this many are open: runs (including those of managers, graphs and
#: firings), and other work.
AT_ONCE = 4
OPEN = (
    f"SELECT COUNT(*) FROM run_history WHERE status NOT IN {TERMINAL}",
    f"SELECT COUNT(*) FROM manager WHERE status NOT IN {TERMINAL}",
    "SELECT COUNT(*) FROM graph WHERE state IN ('draft', 'executing')",
    "SELECT COUNT(*) FROM schedule_due WHERE decision IN ('started', 'queued') AND target_id "
    "IS NULL",
)
#: The seconds within which the work of a day must end. The next poll of executing work is only
#: seconds away on any machine.
STUCK_S = 300.0
#: Tables that must have grown. The load adds nothing to the other tables.
GROWING = (
    "outbox_event",
    "outbox_delivery",
    "task_log",
    "manager_item",
    "graph_step",
    "schedule_due",
)
#: The allowed difference in rows, in total and for one table, because a slow machine polls
#: executing tasks more often.
OFF, OFF_ONE, FEW = 0.1, 0.35, 8


@dataclass(frozen=True, slots=True)
class Day:
    """The rows of each table that were added, that pruning removed, and that are left at the end of
    the day.
    """

    grown: Mapping[str, int]
    removed: Mapping[str, int]
    left: Mapping[str, int]
    bytes: int = 0


def judge(days: Sequence[Day]) -> list[str]:
    """Return what grew although pruning should have removed as much."""
    if len(days) <= STEADY:
        return [f"{len(days)} days prove nothing: {STEADY + 1} or more do"]
    steady, wrong = days[STEADY - 1 :], []
    grown, removed = Counter[str](), Counter[str]()
    for day in steady:
        grown.update(day.grown)
        removed.update(day.removed)
    for table in GROWING:
        if grown[table] < FEW:
            wrong.append(f"{table} got {grown[table]} rows: the load proves nothing about it")
    for name, came, went, off in [("all tables", grown.total(), removed.total(), OFF)] + [
        (table, grown[table], removed[table], OFF_ONE) for table in GOES if grown[table] >= FEW
    ]:
        if abs(went - came) > off * came:
            wrong.append(f"{name}: {came} rows came in {len(steady)} days, and {went} were removed")
    first, last = (sum(day.left.values()) for day in (steady[0], steady[-1]))
    if last > (1 + OFF_ONE) * first:
        wrong.append(f"{first} rows were left after day {STEADY}, and {last} after the last one")
    return wrong


class Days:
    """The load of each day, and its end."""

    def __init__(self, harness: SoakHarness, dice: random.Random) -> None:
        self._harness, self._dice = harness, dice
        self._api = ApiClient(lambda: str(harness.stack.addresses["gateway"]))
        self._count = 0
        self._left, self._kept = Counter[str](), Counter[str]()
        self._ends = [datetime.now(UTC)]
        self.stuck: list[str] = []

    def begin(self, hooks: str) -> None:
        """Create what lasts for all days: a webhook, and a schedule that is triggered by hand,
        because its own times would follow a clock.
        """
        self._ask("PUT", "/v1/webhooks/growth", {"url": hooks, "secrets": ["env:CRAWL_HOOK"]})
        run = {"crawler": "aside", "args": {"note": "due"}} | QUICK
        self._ask(
            "PUT", "/v1/schedules/growth", {"run": run, "every_s": 366 * 86_400, "overlap": "allow"}
        )

    def live(self) -> Day:
        """Execute one day: its load in random order, each part when enough has ended, and the
        pruning when everything has ended.
        """
        kinds = (
            [f"run of {1 + n % 3}" for n in range(RUNS)]
            + ["manager"] * MANAGERS
            + ["graph"] * GRAPHS
            + ["firing"] * FIRINGS
        )
        self._dice.shuffle(kinds)
        for kind in kinds:
            until(self._room, f"room for a {kind}", STUCK_S)
            self._start(kind)
        self.stuck += settled(self._harness, STUCK_S, open_tasks)
        behind = "outbox_event WHERE type = 'run.ended' AND seq > (SELECT through_seq FROM webhook)"
        until(lambda: not self._rows(behind), "the webhook", STUCK_S)
        return self._over()

    def _room(self) -> bool:
        return sum(int(self._harness.query(sql)[0][0]) for sql in OPEN) < AT_ONCE

    def _ask(self, method: str, path: str, body: dict[str, object]) -> dict[str, object]:
        self._count += 1
        told = self._api.until_told(method, path, body, f"growth-{self._count}")
        if not told.ok:
            raise SystemExit(f"refused: {told}")
        return told.answer

    def _start(self, kind: str) -> None:
        job: dict[str, object] = {"crawler": "aside", "args": {"seconds": "0.2"}}
        if kind.startswith("run"):
            self._ask("POST", "/v1/runs", job | QUICK | {"tasks": [{}] * int(kind[-1])})
        elif kind == "firing":
            self._ask("POST", "/v1/schedules/growth/trigger", {"requested_by": "growth"})
        elif kind == "graph":
            steps = [{"path": "a", "kind": "crawl", "job": job | QUICK}]
            steps += [
                {"path": name, "kind": "crawl", "job": job | QUICK, "deps": ["a"]}
                for name in ("b", "c")
            ]
            self._ask("POST", "/v1/graphs", {"id": f"growth-{self._count}", "steps": steps})
        else:
            made = self._ask(
                "POST", "/v1/managers", {"crawler": "aside", "options": {"max_running": 3}}
            )
            page: dict[str, object] = {
                "jobs": [{"spider_args": {"number": str(n)}} for n in range(8)],
                "seal": True,
            }
            self._ask("POST", f"/v1/managers/{made['manager_id']}/jobs", page)

    def _over(self) -> Day:
        """Prune as the command does, and count rows before and after."""
        self._ends.append(datetime.now(UTC))
        before = self._ends[max(0, len(self._ends) - 1 - KEPT_DAYS)]
        found = {table: self._rows(table) for table in GOES}
        with closing(open_pruner(str(self._harness.database))) as pruner:
            pruning = Pruning(pruner, before, {}, yes=True)
            pruning.all_tables()
        removed = {name: table.removed for name, table in pruning.tables.items()}
        kept = {name: table.stays[Stays.ONCE] for name, table in pruning.tables.items()}
        new = {
            name: found[name] - self._left[name] - (kept[name] - self._kept[name]) for name in GOES
        }
        left = {name: self._rows(name) - kept[name] for name in GOES}
        self._left = Counter({name: left[name] + kept[name] for name in GOES})
        self._kept = Counter(kept)
        return Day(new, removed, left, self._bytes())

    def _rows(self, table: str) -> int:
        return int(self._harness.query(f"SELECT COUNT(*) FROM {table}")[0][0])

    def _bytes(self) -> int:
        self._harness.query("ANALYZE TABLE " + ", ".join(GOES))
        names = ", ".join(f"'{name}'" for name in GOES)
        sql = (
            "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE "
            f"table_name IN ({names})"
        )
        return int(self._harness.query(f"{sql} AND table_schema = DATABASE()")[0][0])


def told(number: int, day: Day) -> str:
    """Return the line about one day."""
    sums = [sum(of.values()) for of in (day.grown, day.removed, day.left)]
    parts = ", ".join(
        f"{name} +{day.grown[name]} -{day.removed[name]}" for name in GOES if day.grown[name]
    )
    return (
        f"day {number}: {sums[0]} rows came, {sums[1]} went, {sums[2]} left, "
        f"{day.bytes / 1e6:.1f} MB ({parts})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.growth", description=__doc__)
    parser.add_argument("--days", type=int, default=9, help="default: 9")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    chosen = parser.parse_args()
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))).absolute()
        server, hooks = undo.enter_context(running_mariadb(DURABLE)), Receiver()
        undo.enter_context(serving(hooks))
        harness = undo.enter_context(SoakHarness.up(folder / "state", server, **ENVIRONMENT))
        days = Days(harness, random.Random(chosen.seed))
        days.begin(hooks.url)
        lived = []
        for number in range(1, chosen.days + 1):
            lived.append(days.live())
            say(told(number, lived[-1]))
        wrong = [*judge(lived), *days.stuck]
    return verdict(chosen.seed, wrong)


if __name__ == "__main__":
    sys.exit(main())
