"""A task that prints, over both implementations of ``TaskLogs``."""

from __future__ import annotations

from pathlib import Path

from crawler_lifecycle.adapters.local.logs import LocalLogs
from crawler_lifecycle.fakes.logs import FakeLogs
from crawler_lifecycle.ports import LogPart, TaskLogs, TaskRef

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

    def read(self, after: int | None, limit: int = 1000, *, index: int = 0, attempt: int = 1) -> LogPart | None:
        return self.logs.read(RUN, TaskRef(100 + index, index, attempt), after, limit)


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
    """The files as a supervisor and its crawler leave them."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "tasks" / str(RUN) / "0" / "1"
        self.folder.mkdir(parents=True)
        self.logs = LocalLogs(state)

    def write(self, data: bytes) -> None:
        with open(self.folder / "log", "ab") as file:
            file.write(data)

    def end(self) -> None:
        (self.folder / "end.json").write_text('{"exit_code": 0}')

    def cut(self) -> None:
        (self.folder / "log").write_bytes(b"")
