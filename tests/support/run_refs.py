"""Runs as a cluster knows them, for tests without a database that assigns uids."""

from __future__ import annotations

from crawler_lifecycle.domain.run_ref import RunRef


def run_ref(run_id: int) -> RunRef:
    """Return the only run with this number, with a uid that is derived from it."""
    return RunRef(run_id, f"{run_id:032x}")
