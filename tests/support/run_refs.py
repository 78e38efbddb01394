"""Runs as a cluster knows them, for tests without a database that gives uids."""

from __future__ import annotations

from crawler_lifecycle.domain.run_ref import RunRef


def run_ref(run_id: int) -> RunRef:
    """The one run of this number, with an uid that can be told from its number."""
    return RunRef(run_id, f"{run_id:032x}")
