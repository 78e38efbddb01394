"""Exports of supporting files: their status and their results."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, insert, select, update

from crawler_lifecycle.domain.names import (
    PROPERTY_FILES_REMOVED,
)
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.runs import Fence

from .tables import export_record, history_property
from .unit import RunPart, check_fence


class ExportStore(RunPart):
    """Exports, and how they stand."""

    def begin_export(self, fence: Fence) -> int:
        """An export of the fence's attempt reads files from now on; the last attempt whose files are given up, or 0."""
        x, p = export_record.c, history_property.c
        with self._unit(fence.run_id) as unit:
            if fence.attempt >= unit.attempt:
                check_fence(unit.run, fence)
            key = (x.run_id == unit.run_id, x.attempt == fence.attempt)
            unit.conn.execute(update(export_record).where(*key).values(at=unit.now))
            gone = select(func.max(p.attempt)).where(p.run_id == unit.run_id, p.name == PROPERTY_FILES_REMOVED)
            return unit.conn.execute(gone).scalar_one() or 0

    def record_export(self, fence: Fence, status: str, result: ExportResult | None, error: str | None) -> None:
        """Write down how the export of the fence's attempt stands.

        What was stored stays on record with its address: a later try that fails adds its error and nothing else.
        An attempt that was resumed meanwhile may still say how its own export went: nobody else will.
        """
        x = export_record.c
        with self._unit(fence.run_id) as unit:
            if fence.attempt >= unit.attempt:
                check_fence(unit.run, fence)
            key = (x.run_id == unit.run_id, x.attempt == fence.attempt)
            values = {
                "status": status,
                "url": result.url if result else None,
                "bytes": result.bytes if result else None,
                "files": result.files if result else None,
                "sha256": result.sha256 if result else None,
                "error": error,
                "at": unit.now,
            }
            stored = unit.conn.execute(select(x.url).where(*key)).one_or_none()
            if stored is not None and stored.url is not None and result is None:
                values = {"error": error, "at": unit.now}
            if stored is None:
                row = {"run_id": unit.run_id, "attempt": fence.attempt, **values}
                unit.conn.execute(insert(export_record).values(**row))
            else:
                unit.conn.execute(update(export_record).where(*key).values(**values))

    def list_exports(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(export_record, run_id)
