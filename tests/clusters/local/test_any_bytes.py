"""Whatever a crawler writes into its files, lines and fields, it is read and stored, and the
crawler can be stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes.polls.termination_message import (
    last_progress,
    read_summary,
)
from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.clusters.local.observer import LocalObserver
from crawler_lifecycle.clusters.local.processes.identity import boot_id
from crawler_lifecycle.domain.task import End, Observation, Phase
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Fence, TaskRef
from crawler_lifecycle.runner.contract import valid_stats
from crawler_lifecycle.runner.state import JobState
from crawler_lifecycle.store.store import open_store
from tests.clusters.local.local_fixture import RUN, SLEEP, STUBBORN, Fixture, wait_until
from tests.contracts.store.harness import Clock, Harness, seen
from tests.support.databases import make_tables
from tests.support.examples import examples
from tests.support.run_refs import run_ref

NAMES = (
    "spec.json", "supervisor.json", "waiting.json", "process.json", "stop.json", "signalled.json", "cgroup.json",
    "oom.json", "end.json", "stats.json", "summary.json", "log", "log.1", "lock", "files",
)  # fmt: skip
FIELDS = (
    "pages", "items", "errors", "bytes", "updated_at", "wrote_at", "finished_at", "started_at", "since", "exit",
    "own_exit", "exit_code", "signal", "peak_memory", "memory_limit", "memory_text", "finish_reason", "message",
    "reason", "resumed", "resume_note", "told_to_stop", "runner", "quiet_s", "pid", "start", "boot", "uid", "name",
    "contract", "record", "live_mark", "path", "kills", "counted", "at",
)  # fmt: skip
ODD = st.one_of(
    st.sampled_from([
        None, True, -1, 0, 2, 9, 2**31, 2**63, 10**400, 1e308, float("nan"), "", "\0", "\ud800", "\u202e", "x" * 3000,
        "../../..", "0001-01-01T00:00:00+14:00", "1969-12-31T00:00:00Z", "9999-12-31T23:59:59Z", "2026-03-01T12:00:00",
        "2026-03-01T12:00:00Z", "10000-01-01T00:00:00Z", [], {}, [[]], {"CRAWL_TASK_INDEX": 10**400},
    ]),
    st.integers(),
    st.text(max_size=20),
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=len(FIELDS))
CONTENTS = st.one_of(
    OBJECTS.map(lambda one: json.dumps(one).encode()),
    st.binary(max_size=100),
    st.sampled_from(
        [
            b"",
            b"null",
            b"[" * 100_000,
            b'{"pages": ' + b"9" * 5000 + b"}",
            b"\xef\xbb\xbf{}",
            b"{}" * 2**18,
        ]
    ),
)
KINDS = ("folder", "link", "loop", "pipe", "gone")
THINGS = st.one_of(CONTENTS, st.sampled_from(KINDS))


def put(path: Path, thing: bytes | str) -> None:
    """Put this in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if isinstance(thing, bytes):
        path.write_bytes(thing)
    elif thing == "folder":
        path.mkdir()
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing in ("link", "loop"):
        path.symlink_to("/etc/passwd" if thing == "link" else path)


@dataclass
class Place:
    """A database with one run of three tasks that have ended, and the folder of the first."""

    cluster: LocalCluster
    state: Path
    harness: Harness
    fence: Fence
    task: TaskRef

    @classmethod
    def over(cls, folder: Path) -> Place:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        store = open_store(make_tables(f"sqlite:///{folder}/state.db"), pool_size=1)
        harness = Harness(store, Clock())
        fence = harness.deployed(tasks=3)
        harness.execute(fence)
        cluster = LocalCluster(folder / "local", 1)
        (folder / "local" / "tasks" / str(fence.run) / "0" / "1").mkdir(parents=True)
        first = harness.store.polls.found_state(fence).tasks[0]
        return cls(
            cluster, folder / "local", harness, fence, TaskRef(first.task_id, 0, 1, first.uid)
        )

    def keep(self, seen_now: list[Observation], details: list[Details]) -> None:
        """Commit what was read, and read it all again."""
        store, fence = self.harness.store, self.fence
        self.harness.stage(fence, seen_now)
        store.polls.save_details(fence, details)
        store.polls.apply_details(fence)
        store.polls.apply_findings(fence, "look")
        row = store.runs.get_run(fence.run_id)
        assert row is not None
        assert [task.status for task in store.tasks.list_tasks(fence.run_id)][1:] == ["RUNNING"] * 2
        assert all("unreadable" not in one.evidence for one in store.runs.transitions(fence.run_id))

    def close(self) -> None:
        self.harness.store.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@settings(max_examples=examples(12))
@given(left=st.dictionaries(st.sampled_from(NAMES), THINGS, max_size=len(NAMES)))
def test_whatever_lies_in_a_folder_is_read_and_kept(
    folder: Path, left: Mapping[str, bytes | str]
) -> None:
    place = Place.over(folder / "one")
    try:
        run, task = place.fence.run, place.task
        for name, thing in left.items():
            put(place.state / "tasks" / str(run) / "0" / "1" / name, thing)
        (place.state / "live" / f"crawl-{run}-0-1").touch()
        poll = place.cluster.poll(run, [task])
        decide = (
            {"supervisor.json", "process.json"} & set(left)
            if poll.observations[0].phase is Phase.GONE
            else ()
        )
        for data in (json.loads(left[name]) for name in decide if isinstance(left[name], bytes)):
            assert [type(data[name]) for name in ("pid", "start", "boot")] == [int, int, str], (
                "else it is not gone"
            )
        details = place.cluster.details(run, [task])
        LocalLogs(place.state).read(run, task, None, 1000)
        place.cluster.task_records(run)
        place.cluster.inventory()
        LocalFiles(place.state).files(run, [task])
        for one in LocalObserver(place.state).counted():
            assert one.run == run
        place.keep(list(poll.observations), details)
        place.cluster.stop(run, task)
        place.cluster.kill(run, task)
        after = place.cluster.poll(run, [task])
        assert after.observations[0].phase in (Phase.ABSENT, Phase.ENDED, Phase.GONE)
        place.keep(list(after.observations), place.cluster.details(run, [task]))
    finally:
        place.close()


@settings(max_examples=examples(12))
@given(
    said=st.one_of(OBJECTS, CONTENTS), before=st.binary(max_size=30), after=st.binary(max_size=30)
)
def test_whatever_a_pod_prints_is_read_and_kept(
    folder: Path, said: dict[str, Any] | bytes, before: bytes, after: bytes
) -> None:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    word = read_summary((before + body + after).decode("utf-8", "replace"))
    own = read_summary(body.decode("utf-8", "replace"))
    progress = last_progress(before + b'{"crawl_progress": ' + body + b"}\n" + after)
    place = Place.over(folder / "two")
    try:
        first, now = (
            place.harness.store.polls.found_state(place.fence).tasks[0],
            place.harness.clock.now,
        )
        told = (
            []
            if progress is None
            else [Details(first.task_id, "log", progress.counters, own.peak_memory)]
        )
        for last in (word, own):
            end = End(
                last.exit, last.signal, "Error", last.message, last.progress.at, last.finish_reason
            )
            fields = {
                "uid": first.uid,
                "counters": last.progress.counters,
                "progress_at": last.progress.at,
                "end": end,
            }
            fields |= {
                "resume_note": last.progress.resume_note,
                "resumed": last.progress.resumed,
                "peak_memory": last.peak_memory,
            }
            place.keep([seen(first, Phase.ENDED, now, changed_at=last.progress.at, **fields)], told)
    finally:
        place.close()


@settings(max_examples=examples(60))
@given(marker=THINGS, job=st.one_of(st.just("folder"), THINGS), aside=THINGS, stats=OBJECTS)
@example(marker=b"", job="folder", aside="pipe", stats={})
def test_saved_state_never_keeps_a_crawler_from_its_start(
    folder: Path, marker: bytes | str, job: bytes | str, aside: bytes | str, stats: dict[str, Any]
) -> None:
    folder = folder / "state"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, thing in (("clean-stop.json", marker), ("job", job), ("job.aside", aside)):
        put(folder / name, thing)
    state = JobState(str(folder))
    resumed, note = state.open(True)
    assert note
    assert (folder / "job").is_dir()
    assert not (folder / "job").is_symlink()
    assert resumed or os.listdir(folder / "job") == []
    assert all(type(value) is int and value >= 0 for value in state.counted.values())
    json.dumps(state.with_earlier(valid_stats(stats)), allow_nan=False)


#: In every file of the task at once.
EVERYWHERE: dict[str, bytes | str] = {
    "bytes": bytes(range(256)),
    "lies": json.dumps(dict.fromkeys(FIELDS, 10**400)).encode(),
    "times": json.dumps(dict.fromkeys(FIELDS, "9999-12-31T23:59:59Z")).encode(),
    "processes": json.dumps({"pid": 10**400, "start": 1, "boot": boot_id()}).encode(),
    "pipes": "pipe",
}


@pytest.mark.parametrize("thing", EVERYWHERE)
def test_who_spoils_everything_is_stopped_and_its_neighbour_notices_nothing(
    fixture: Fixture, thing: str
) -> None:
    fixture.start(STUBBORN)
    fixture.deploy(SLEEP, range(1, 2))
    fixture.until(Phase.EXECUTING, 1)
    spec = json.loads((fixture.folder() / "spec.json").read_text())
    task, other = TaskRef(1000, 0, 1, spec["uid"]), fixture.runner(1)
    for name in NAMES:
        put(fixture.folder() / name, EVERYWHERE[thing])
    assert fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase is Phase.EXECUTING
    fixture.cluster.details(run_ref(RUN), [task])
    fixture.cluster.stop(run_ref(RUN), task)
    fixture.cluster.kill(run_ref(RUN), task)
    wait_until(
        lambda: TaskFolder(fixture.cluster._state, run_ref(RUN), fixture.ref()).named() == ([], [])
    )
    assert fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase in (
        Phase.ENDED,
        Phase.GONE,
    )
    assert other.alive()
    beside = fixture.poll(1)
    assert (beside.phase, beside.reason) == (Phase.EXECUTING, None)
    (fixture.folder() / "spec.json").unlink()
