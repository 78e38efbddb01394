"""Caps: limits of features on the number of tasks that a run may start."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, false, literal, or_, select

from crawler_lifecycle.domain.blocked import TaskReport
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.features import FEATURES

from .pools import leave_line
from .tickets import SlotLines
from .unit import Unit


class Cap(SlotLines):
    """A limit on the tasks of runs that have something in common.

    The static methods are called in the transaction of a run whose row is locked, before a row of a
    pool is locked.
    """

    wait: Wait
    """What the runs are waiting for that this cap stops."""

    @staticmethod
    @abstractmethod
    def join(unit: Unit, tasks: Sequence[Mapping[str, str]]) -> None:
        """Record what the run belongs to because of its request and these new tasks. ``tasks``
        contains the arguments of each task.

        Raises ``InvalidRequest``.
        """

    @staticmethod
    @abstractmethod
    def allow(unit: Unit, wanted: int) -> int:
        """Return how many of ``wanted`` further tasks the run may start now.

        If it may start fewer, the run waits in a line until it is called. Otherwise it leaves the
        line.
        """

    @staticmethod
    @abstractmethod
    def leave(unit: Unit) -> None:
        """Remove the run from the line."""

    @staticmethod
    @abstractmethod
    def hear(unit: Unit, refusals: Sequence[TaskReport], success: datetime | None) -> None:
        """Record what the crawlers of the run report: refused requests, of which a task can report
        the same again. ``success`` is the latest start of the tasks that have now succeeded.
        """

    @staticmethod
    @abstractmethod
    def in_line(run_id: ColumnElement[int]) -> ColumnElement[bool]:
        """Return the condition that the run with this number is waiting in a line."""

    @abstractmethod
    def words(self, run_id: int) -> str | None:
        """Return the phrase about the present wait of a run, for the current caller; ``None`` if
        the run is not waiting in a line.
        """


@functools.cache
def caps() -> tuple[type[Cap], ...]:
    """Return the caps of all features.

    They are imported inside this function because their modules import this module.
    """
    return tuple(feature.load(feature.cap) for feature in FEATURES if feature.cap)


def join_caps(unit: Unit, tasks: Sequence[Mapping[str, str]]) -> None:
    """Record what the run belongs to, for all caps. Raises ``InvalidRequest``."""
    for cap in caps():
        cap.join(unit, tasks)


def allowed(unit: Unit, wanted: int) -> int:
    """Return how many of ``wanted`` further tasks all caps allow."""
    for cap in caps():
        wanted = cap.allow(unit, wanted) if wanted else 0
    return wanted


def leave_caps(unit: Unit) -> None:
    """Remove the run from the lines of all caps."""
    for cap in caps():
        cap.leave(unit)


def hear_reports(
    unit: Unit, refusals: Sequence[TaskReport], success: datetime | None = None
) -> None:
    """Record what the crawlers of the run report, for all caps (``Cap.hear``)."""
    if refusals or success is not None:
        for cap in caps():
            cap.hear(unit, refusals, success)


def leave_lines(unit: Unit) -> None:
    """Remove the run from every line, because it starts no further task."""
    leave_line(unit)
    leave_caps(unit)


def waits_for_cap(conn: Connection, run_id: int) -> bool:
    """Return whether the run is waiting because of a cap."""
    conditions = (cap.in_line(literal(run_id)) for cap in caps())
    return bool(conn.execute(select(or_(false(), *conditions))).scalar_one())


class CapStore(SlotLines):
    """The lines of all caps, as used by workers that call waiting runs and as shown to people."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._caps = [cap(*options) for cap in caps()]

    def words(self, run_id: int) -> str | None:
        """Return the phrase about the present wait of a run, for the current caller; ``None`` if
        the run is not waiting because of a cap.
        """
        words = (cap.words(run_id) for cap in self._caps)
        return next(filter(None, words), None)

    def adopt(self) -> None:
        for cap in self._caps:
            cap.adopt()

    def call(self) -> dict[int, str]:
        return {run_id: workflow for cap in self._caps for run_id, workflow in cap.call().items()}

    def uncall(self, run_ids: Sequence[int], *, gone: bool) -> None:
        for cap in self._caps:
            cap.uncall(run_ids, gone=gone)
