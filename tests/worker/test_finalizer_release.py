"""The release of ends: only of those on record, however often it is requested, and whatever fails
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from crawler_lifecycle.domain.audits.audit import RecordedTask
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import SavedOutcome
from crawler_lifecycle.ports.runs import TaskRef
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.worker import finalizer_release
from crawler_lifecycle.worker.finalizer_release import Releaser, releasable
from tests.support.run_refs import run_ref
from tests.worker.test_recording import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def end(index: int = 0, run_id: int = 1, **more: Any) -> SavedOutcome:
    return SavedOutcome(
        run_id,
        index,
        1,
        **{"uid": f"u{index}", "run_uid": run_ref(run_id).uid, "ended_at": NOW, **more},
    )


def row(index: int = 0, run_id: int = 1, **more: Any) -> RecordedTask:
    given = {
        "status": "SUCCEEDED",
        "run_status": "PROCESSING",
        "uid": f"u{index}",
        "exit_code": 0,
        **more,
    }
    return RecordedTask(10 * run_id + index, run_id, run_ref(run_id).uid, index, 1, **given)


@dataclass
class Keeper:
    ends: list[SavedOutcome] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    calls: list[tuple[int, list[int]]] = field(default_factory=list)

    asked: int = 0

    def kept(self) -> list[SavedOutcome]:
        self.asked += 1
        if 0 in self.broken:
            raise ClusterUnavailable("down")
        return list(self.ends)

    def release(self, run: RunRef, tasks: Sequence[TaskRef]) -> None:
        run_id = run.run_id
        if run_id in self.broken:
            raise ClusterUnavailable(f"run {run_id} cannot be patched")
        self.calls.append((run_id, [task.index for task in tasks]))
        gone = {(run_id, task.index) for task in tasks}
        self.ends = [one for one in self.ends if (one.run_id, one.index) not in gone]


@dataclass
class Rows:
    rows: list[RecordedTask]

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        return [one for one in self.rows if one.key in keys]


def releaser(keeper: Keeper, rows: list[RecordedTask]) -> Releaser:
    return Releaser(keeper, cast(TaskReader, Rows(rows)), clock=lambda: NOW, turn_s=0.01)


@pytest.mark.parametrize(
    ("kept", "recorded", "goes"),
    [
        (end(), row(), True),
        (end(), row(status="FAILED", exit_code=3), True),
        # Superseded: its run continued without it.
        (end(), row(status="FAILED", run_status="COMPLETED"), True),
        (end(), row(status="RUNNING", exit_code=None), False),
        (end(), row(status="STOPPING", exit_code=None), False),
        (end(), None, False),
        (end(), row(uid="other"), False),
        (end(), row(uid=None), False),  # it never had an object
        (end(uid=None), row(uid=None), True),
        (end(uid=None), row(), True),
        (end(uid=None, run_uid="another"), row(), False),  # of another run with the same number
        (
            end(ended_at=NOW - timedelta(hours=2)),
            row(status="FAILED", uid=None, exit_code=None),
            False,
        ),
        (
            end(ended_at=NOW - timedelta(hours=2)),
            row(status="CANCELLED", uid=None, exit_code=None),
            False,
        ),
        (end(ran=False), row(status="CANCELLED", uid=None, exit_code=None), False),
        (end(ran=False), row(status="CANCELLED", exit_code=None), True),
        # Late evidence is for the audit.
        (end(), row(status="LOST", exit_code=None), False),
        (end(), row(status="LOST", exit_code=None, exit_signal=9), True),
        (end(ended_at=NOW - timedelta(hours=2)), row(status="LOST", exit_code=None), True),
    ],
)
def test_what_may_go(kept: SavedOutcome, recorded: RecordedTask | None, goes: bool) -> None:
    rows = {} if recorded is None else {recorded.key: recorded}
    assert releasable([kept], rows, NOW) == ([kept] if goes else [])


def test_one_turn(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper([end(0), end(1), end(2), end(0, 2), end(0, 99)])
    helper = releaser(keeper, [row(0), row(1), row(2, status="RUNNING"), row(0, 2)])
    with caplog.at_level(logging.WARNING):
        assert helper.turn() == (3, 0)
        assert helper.turn() == (0, 0)
    assert keeper.calls == [(1, [0, 1]), (2, [0])]
    assert [one.key for one in keeper.ends] == [(1, 2, 1), (99, 0, 1)]
    assert helper.state() | {"last_s": 0} == {
        "kept": 2,
        "unknown": 1,
        "problem": None,
        "last_s": 0,
        "released": 3,
    }
    assert caplog.text.count("have no row in the database") == 1


def test_what_is_under_the_name_of_another_object_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = row(0, status="FAILED", uid=None, exit_code=None)
    not_told_yet = row(2, status="PENDING", uid=None, exit_code=None)
    keeper = Keeper([end(0), end(1), end(2)])
    helper = releaser(
        keeper, [refused, row(1, status="RUNNING", uid="ours", exit_code=None), not_told_yet]
    )
    with caplog.at_level(logging.WARNING):
        assert helper.turn() == (0, 0)
    assert (helper.state()["kept"], helper.state()["unknown"], keeper.calls) == (3, 2, [])
    assert "the cluster keeps 2 ended tasks that have no row in the database" in caplog.text


def test_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalizer_release, "PAGE", 3)
    keeper = Keeper([end(index) for index in range(7)])
    helper = releaser(keeper, [row(index) for index in range(7)])
    assert [helper.turn() for _ in range(4)] == [(3, 4), (3, 1), (1, 0), (0, 0)]


def test_one_run_that_cannot_be_let_go_holds_up_no_other() -> None:
    keeper = Keeper([end(0, 1), end(0, 2)], broken={1})
    helper = releaser(keeper, [row(0, 1), row(0, 2)])
    with pytest.raises(ClusterUnavailable, match="run 1"):
        helper.turn()
    assert keeper.calls == [(2, [0])]
    keeper.broken.clear()
    assert helper.turn() == (1, 0)


async def test_it_goes_on_after_trouble_and_says_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalizer_release, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(finalizer_release, "IDLE_S", 0.02)
    keeper = Keeper([end()], broken={0})
    helper = releaser(keeper, [row()])
    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(helper.run())
        await until(lambda: helper.state()["problem"] == "down" and keeper.asked >= 3)
        keeper.broken.clear()
        await until(lambda: not keeper.ends and helper.state()["problem"] is None)
        task.cancel()
        await asyncio.wait([task])
    assert caplog.text.count("the release of ended tasks failed and is retried") == 1
    assert caplog.text.count("the release of ended tasks works again") == 1
