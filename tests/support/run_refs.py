"""Runs as a cluster knows them, for tests without a database that gives uids."""

from __future__ import annotations

import json
from pathlib import Path

from crawler_lifecycle.domain.run_ref import RunRef


def run_ref(run_id: int) -> RunRef:
    """The one run of this number, with an uid that can be told from its number."""
    return RunRef(run_id, f"{run_id:032x}")


def owned(folder: Path, run_id: int) -> None:
    """Say on a local cluster that the folder of this number is that run's."""
    (folder / "run.json").write_text(json.dumps({"run_id": run_id, "run_uid": run_ref(run_id).uid}))
