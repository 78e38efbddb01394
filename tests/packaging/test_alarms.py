"""Each alert fires when it should, and is silent when it should: promtool plays them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import promtool

ALARMS = Path(__file__).parents[2] / "deploy/helm/files/alarms.yaml"
#: Series by name -> values, one a minute, and the minute of the check.
Play = tuple[dict[str, str], int]
_POLLS = 'lifecycle_polls_total{result="%s"}'
_LAG = 'lifecycle_truth_lag_seconds_bucket{le="%s"}'
_WAIT = 'temporal_activity_schedule_to_start_latency_seconds_bucket{le="%s",task_queue="crawler-lifecycle"}'
_POLLERS = 'temporal_num_pollers{task_queue="crawler-lifecycle%s"}'
_DUE = 'lifecycle_schedule_firings_total{decision="%s"}'
_HOOKS = 'lifecycle_webhooks{state="%s"}'
_TASKS = 'crawler_lifecycle_scheduler_tasks_total{state="%s"}'
_POOL = 'lifecycle_pool_%s{pool="shop"}'


def _pool(wait: str, in_use: str, most: str, reserved: str) -> dict[str, str]:
    values = {
        "oldest_wait_seconds": wait,
        "slots_in_use": in_use,
        "slots_max": most,
        "slots_reserved": reserved,
    }
    return {_POOL % name: value for name, value in values.items()}


#: Alert -> when it fires, and when it is silent.
PLAYS: dict[str, tuple[list[Play], list[Play]]] = {
    "CrawlStatusesWereUntrue": (
        # The first of its kind, in a worker without an earlier value; and one more of a known kind.
        [
            ({'lifecycle_corrections_total{kind="killed",pod="a"}': "_x20 1x60"}, 30),
            ({'lifecycle_corrections_total{kind="late",pod="a"}': "3x20 4x60"}, 30),
        ],
        [
            ({'lifecycle_corrections_total{kind="killed",pod="a"}': "7x200"}, 100),
            ({'lifecycle_corrections_total{kind="killed",pod="a"}': "_x20 1x200"}, 90),
        ],
    ),
    "CrawlTruthIsLate": (
        [({_LAG % "60": "0x200", _LAG % "600": "0+1x200", _LAG % "+Inf": "0+1x200"}, 120)],
        [({_LAG % "60": "0+1x200", _LAG % "600": "0+1x200", _LAG % "+Inf": "0+1x200"}, 120)],
    ),
    "CrawlPollsFail": (
        [({_POLLS % "failed": "0+2x60", _POLLS % "ok": "0+8x60"}, 50)],
        [
            ({_POLLS % "failed": "0+1x60", _POLLS % "ok": "0+99x60"}, 50),
            ({_POLLS % "failed": "0x60"}, 50),
        ],
    ),
    "CrawlPollsAreOverdue": (
        [({"lifecycle_poll_overdue_seconds_max": "0x10 150x10"}, 15)],
        [({"lifecycle_poll_overdue_seconds_max": "0x10 110x10"}, 15)],
    ),
    "CrawlObserverIsBlind": (
        [({"lifecycle_observer_up": "0x60"}, 30), ({}, 30)],
        [
            (
                {
                    'lifecycle_observer_up{pod="a"}': "0x60",
                    'lifecycle_observer_up{pod="b"}': "1x60",
                },
                30,
            )
        ],
    ),
    "CrawlRunsBlocked": (
        [({"lifecycle_runs_blocked": "0x10 2x10"}, 18)],
        [({"lifecycle_runs_blocked": "0x60"}, 18)],
    ),
    "CrawlQueueHasNoWorker": (
        [
            ({_POLLERS % "": "4x30"}, 20),
            ({_POLLERS % "": "4x30", _POLLERS % "-control": "4x9 stale _x20"}, 20),
        ],
        [({_POLLERS % "": "4x30", _POLLERS % "-control": "4x30"}, 20)],
    ),
    "CrawlWorkWaitsForWorkers": (
        [({_WAIT % "1": "0x60", _WAIT % "10": "0+9x60", _WAIT % "+Inf": "0+9x60"}, 40)],
        [({_WAIT % "1": "0+9x60", _WAIT % "10": "0+9x60", _WAIT % "+Inf": "0+9x60"}, 40)],
    ),
    "CrawlGatewayMissesAPart": (
        [({'crawler_lifecycle_gateway_available{part="database"}': "0x30"}, 20)],
        [({'crawler_lifecycle_gateway_available{part="database"}': "1x30"}, 20)],
    ),
    "CrawlGatewayIsGone": (
        [({}, 20), ({'crawler_lifecycle_gateway_available{part="database"}': "1x9 stale"}, 20)],
        [({'crawler_lifecycle_gateway_available{part="database"}': "0x30"}, 20)],
    ),
    "CrawlDueTimesCameToNothing": (
        [({_DUE % "missed": "_x20 1x60"}, 30), ({_DUE % "failed": "2x20 3x60"}, 30)],
        [({_DUE % "started": "0+1x60"}, 30), ({_DUE % "missed": "5x200"}, 100)],
    ),
    "CrawlSchedulesAreNotTold": (
        [({"lifecycle_schedules_unsynced": "1x30"}, 20)],
        [({"lifecycle_schedules_unsynced": "0x9 1x3 0x20"}, 20)],
    ),
    "CrawlDeliveriesFail": (
        [({'lifecycle_deliveries_total{sink="events",result="failed"}': "0+1x60"}, 30)],
        [({'lifecycle_deliveries_total{sink="events",result="delivered"}': "0+1x60"}, 30)],
    ),
    "CrawlWebhookFails": (
        [({_HOOKS % "failing": "1x120"}, 100)],
        [({_HOOKS % "failing": "1x50 0x120", _HOOKS % "paused": "0x200"}, 100)],
    ),
    "CrawlWebhookIsPaused": (
        [({_HOOKS % "paused": "1x20"}, 10)],
        [({_HOOKS % "failing": "1x20"}, 10)],
    ),
    "CrawlExportsFail": (
        [({'lifecycle_exports_total{result="failed"}': "0+1x60"}, 30)],
        [({'lifecycle_exports_total{result="exported"}': "0+1x60"}, 30)],
    ),
    "CrawlTasksAreDeferred": (
        [({_TASKS % "deferred": "0+3x120", _TASKS % "created": "0+1x120"}, 90)],
        [({_TASKS % "deferred": "0+1x120", _TASKS % "created": "0+3x120"}, 90)],
    ),
    "CrawlPoolWaitsWithoutItsSlots": (
        [
            (_pool("4000x60", "3x60", "5x60", "0x60"), 30),
            (_pool("4000x60", "5x60", "5x60", "6x60"), 30),
        ],
        [
            (_pool("4000x60", "5x60", "5x60", "2x60"), 30),
            (_pool("100x60", "3x60", "5x60", "0x60"), 30),
        ],
    ),
    "CrawlTasksAreRefused": (
        [({_TASKS % "refused": "_x20 1x60"}, 30), ({_TASKS % "refused": "2x20 3x60"}, 30)],
        [({_TASKS % "refused": "9x200"}, 100)],
    ),
}


def _plays() -> list[dict[str, Any]]:
    found = []
    for alarm, (firing, silent) in PLAYS.items():
        for at, fires in [*((play, True) for play in firing), *((play, False) for play in silent)]:
            series, minute = at
            asked = f'count(ALERTS{{alertname="{alarm}",alertstate="firing"}})'
            samples = [{"labels": "{}", "value": 1}] if fires else []
            found.append({
                "name": f"{alarm} {'fires' if fires else 'is silent'}",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": asked, "eval_time": f"{minute}m", "exp_samples": samples}],
            })  # fmt: skip
    return found


def test_each_alarm_has_plays() -> None:
    groups = yaml.safe_load(ALARMS.read_text())["groups"]
    assert set(PLAYS) == {rule["alert"] for group in groups for rule in group["rules"]}


@pytest.mark.servers
def test_alarms_fire_when_they_should_and_not_else(tmp_path: Path) -> None:
    plays = {"rule_files": [str(ALARMS)], "evaluation_interval": "1m", "tests": _plays()}
    (tmp_path / "plays.yaml").write_text(yaml.safe_dump(plays))
    command = [promtool.program(), "test", "rules", tmp_path / "plays.yaml"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
