"""The notes that a worker leaves while it is running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.store import notes
from crawler_lifecycle.store.notes import WORKER, Beats
from crawler_lifecycle.store.store import Store, open_store
from tests.support.databases import make_tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(open_store(make_tables(f"sqlite:///{tmp_path}/runs.db"))) as store:
        yield store


def left(store: Store) -> list[dict[str, Any]]:
    return [json.loads(row["note"]) for row in store.notes.live_notes(WORKER)]


async def later(store: Store, at: float) -> dict[str, Any]:
    """Return the worker's note that is newer than ``at``."""
    while True:
        found = [note for note in left(store) if note["at"] > at]
        if found:
            return found[0]
        await asyncio.sleep(0.01)


async def test_a_worker_renews_its_note_and_removes_it_when_it_shuts_down(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "BEAT_S", 0.01)
    beats = asyncio.create_task(Beats(store.notes, ["workflows", "audit"]).run())
    async with asyncio.timeout(60):
        first = await later(store, 0.0)
        second = await later(store, first["at"])
    assert (second["roles"], second["began"]) == ("audit workflows", first["began"])
    [row] = store.notes.live_notes(WORKER)
    assert str(row["name"]).endswith(f"/{os.getpid()}")
    beats.cancel()
    await asyncio.gather(beats, return_exceptions=True)
    assert left(store) == []
