"""A poll of a few tasks of a run reads no more when the run is larger."""

from __future__ import annotations

import os
from typing import Any

import pytest

from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.runner.safe_directory import SafeDirectory
from tests.clusters.local.local_fixture import RUN, Fixture
from tests.support.run_refs import run_ref


def test_it_opens_only_their_folders_and_lists_none(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.fill(2)
    for index in range(2, 500):
        fixture.folder(index).mkdir(parents=True)
    opened, listed = list[tuple[str, ...]](), list[str]()
    below, scandir, listdir = SafeDirectory.below, os.scandir, os.listdir

    def noted_below(self: SafeDirectory, *names: str) -> SafeDirectory:
        opened.append(names)
        return below(self, *names)

    def noted_scandir(path: Any = ".") -> Any:
        listed.append(str(path))
        return scandir(path)

    def noted_listdir(path: Any = ".") -> Any:
        listed.append(str(path))
        return listdir(path)

    monkeypatch.setattr(SafeDirectory, "below", noted_below)
    monkeypatch.setattr(os, "scandir", noted_scandir)
    monkeypatch.setattr(os, "listdir", noted_listdir)
    seen = fixture.cluster.poll(run_ref(RUN), [fixture.ref(1), fixture.ref(499)]).observations
    assert [one.phase for one in seen] == [Phase.EXECUTING, Phase.ABSENT]
    assert set(opened) == {(str(run_ref(RUN)), "1", "1"), (str(run_ref(RUN)), "499", "1")}
    assert {path for path in listed if not path.startswith("/proc")} <= {
        str(fixture.state / "tasks")
    }
