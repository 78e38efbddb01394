"""A task that prints, on all implementations of ``TaskLogs``."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.ports.cluster import TaskLogs
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.runs import TaskRef
from examples.spool.cluster import Spool
from tests.support.fakes.logs import FakeLogs
from tests.support.kube_api import FakeApiServer
from tests.support.kube_api.clients import patient
from tests.support.run_refs import run_ref

RUN = 7


class Harness:
    """One task of run 7."""

    logs: TaskLogs

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def cut(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop reading."""

    def read(
        self, after: int | None, limit: int = 1000, *, index: int = 0, attempt: int = 1
    ) -> LogPart | None:
        return self.logs.read(run_ref(RUN), TaskRef(100 + index, index, attempt), after, limit)


class FakeHarness(Harness):
    def __init__(self) -> None:
        self.logs = self.fake = FakeLogs()

    def write(self, data: bytes) -> None:
        self.fake.write(data, RUN)

    def end(self) -> None:
        self.fake.end(RUN)

    def cut(self) -> None:
        self.fake.cut(RUN)


class LocalHarness(Harness):
    """The files that a supervisor and its crawler write."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "tasks" / str(run_ref(RUN)) / "0" / "1"
        self.folder.mkdir(parents=True)
        self.logs = LocalLogs(state)

    def write(self, data: bytes) -> None:
        with open(self.folder / "log", "ab") as file:
            file.write(data)

    def end(self) -> None:
        (self.folder / "end.json").write_text('{"exit_code": 0}')

    def cut(self) -> None:
        (self.folder / "log").write_bytes(b"")


class SpoolHarness(LocalHarness):
    """The file names happen to be the same."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.logs = Spool(state, 1)


class PodHarness(Harness):
    """A pod on the fake API server.

    Time passes between two prints, on the node's own clock.
    """

    NAME = "crawl-7-0-1"

    def __init__(self, folder: Path) -> None:
        self.server = FakeApiServer(folder)
        self.api = patient(self.server)
        self.logs = PodLogs(self.api)
        self._node_time, self._step = datetime(2030, 1, 1, tzinfo=UTC), timedelta(seconds=0.4)

    def close(self) -> None:
        self.api.close()
        self.server.close()

    def _pod(self) -> dict[str, Any]:
        if not self.server.pods():
            ours = {
                labels.MANAGED_BY: labels.MANAGER,
                labels.RUN: str(RUN),
                labels.TASK: "0",
                labels.ATTEMPT: "1",
            }
            ours |= {labels.RUN_UID: run_ref(RUN).uid}
            ours[labels.TASK_ID] = "100"
            pod = {
                "containers": [{"name": labels.CONTAINER, "image": "x"}],
                "restartPolicy": "Never",
            }
            template = {"metadata": {"labels": ours}, "spec": pod}
            job = {
                "metadata": {"name": self.NAME, "labels": ours},
                "spec": {"template": template, "backoffLimit": 0},
            }
            self.api.post(self.api.jobs_path(), {"kind": "Job", "apiVersion": "batch/v1", **job})
            self.server.pod_starts(self.NAME)
        return self.server.pod(self.NAME)

    def write(self, data: bytes) -> None:
        kept = self.server.logs.setdefault(self._pod()["metadata"]["uid"], [])
        for line in io.BytesIO(data):
            if kept and not kept[-1][1].endswith(b"\n"):
                kept[-1] = (kept[-1][0], kept[-1][1] + line)
            else:
                self._node_time += self._step
                kept.append((self._node_time, line))

    def end(self) -> None:
        self._pod()
        self.server.pod_ends(self.NAME, 0)

    def cut(self) -> None:
        self.server.logs[self._pod()["metadata"]["uid"]].clear()
