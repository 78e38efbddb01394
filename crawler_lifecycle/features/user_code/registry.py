"""The registry of a worker's user code, which reads the modules in its settings and records their
managers in the database.

Each module is loaded in a separate process with a time limit. A module that fails, ends its process
or never returns is recorded with its error. The other modules still work.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.ports import (
    CODE_GRAPH,
    CODE_MANAGER,
    CODE_MODULE,
    CODE_READING,
    UserCodeRow,
)
from crawler_lifecycle.ports.protocols import UserCodeFailed

from . import calls
from .pool import no_answer
from .process import START_S, HostProcess, Rules

if TYPE_CHECKING:
    from crawler_lifecycle.features.managers.store.user_code import UserCodeStore


log = logging.getLogger(__name__)

#: Seconds between two writes of the user code, and between two checks for changed files.
RECORD_S = 60.0
CHECK_S = 2.0
#: The maximum number of seconds for which the first read of the modules keeps a worker from being
#: ready.
FIRST_S = 60.0
#: The module of the built-in manager.
_OURS = BUILT_IN.partition(":")[0]
#: Stands for every module in the folder (``modules_in``), including new ones.
ALL = "*"
#: The import line of such a module. A file that mentions our packages only elsewhere may be
#: unrelated.
_USES = re.compile(r"^(from|import) crawler_lifecycle\.(managers|graphs)\b", re.M)
#: Files of this kind are served only if they import our packages.
_TESTS = ("test_", "conftest")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: The statements in a module of plain functions. A module with other statements may be a program,
#: such as a crawler.
_PLAIN = (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
#: The maximum number of source files to watch in the folder of users' modules.
FILES_MAX = 500


@dataclass
class _Module:
    """The user code of one module, and its source files with their times at the read."""

    user_code: list[UserCodeRow] = field(default_factory=list)
    files: frozenset[str] = frozenset()
    stamps: Mapping[str, int] = field(default_factory=dict)
    at: float | None = None

    @property
    def broken(self) -> bool:
        return any(row.error is not None for row in self.user_code)


class Registry:
    """Keeps the user code of one worker recorded. After each write, ``notify`` gets the
    fingerprints by class.
    """

    def __init__(
        self,
        worker_id: str,
        modules: Sequence[str],
        user_code: UserCodeStore,
        rules: Rules,
        limit_s: float = START_S,
        notify: Callable[[Mapping[str, str]], None] = lambda fingerprints: None,
        queue: str | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._user_code = user_code
        self._rules = rules
        self._notify = notify
        self._named = [name for name in modules if name != ALL]
        self._all = ALL in modules
        self.modules = {name: _Module() for name in self._named}
        """Modules that this worker has. The pools of processes share this dictionary."""
        self._queue = queue
        self._limit_s = limit_s
        self._recorded: float | None = None
        """The time of the last write of the user code, or ``None`` if a new one is due."""
        self._began = time.monotonic()
        self._leaving = threading.Event()

    def run(self) -> None:
        """Keep the user code recorded in the caller's thread until ``leave``, and then remove the
        record.
        """
        loop = Loop(
            "the registration of user code",
            CHECK_S,
            meanwhile="user code that is registered can be started",
        )
        loop.run_in_thread(self.turn, self._leaving)
        try:
            self._user_code.register_user_code(self._worker_id, [])
        except LifecycleError as why:
            log.info(
                "the record of this worker's user code could not be removed, and will expire: %s",
                why,
            )

    def leave(self) -> None:
        """End ``run`` after its current work."""
        self._leaving.set()

    def turn(self) -> None:
        """Read changed modules.

        Record the user code after a change, or a minute after the last write.
        """
        found = {*self._named, *(modules_in(self._rules.folder) if self._all else ())}
        for name in found ^ self.modules.keys():
            self._recorded = None
            if self.modules.pop(name, None) is None:
                self.modules[name] = _Module()
        if (
            all(module.at is None for module in self.modules.values())
            and not self._leaving.is_set()
        ):
            # Until the modules have been read, it is unknown which classes they contain.
            reading = [self._row(name, CODE_READING) for name in self.modules if name != _OURS]
            self._user_code.register_user_code(self._worker_id, reading)
        stale = [name for name, module in self.modules.items() if self._stale(module)]
        # A module that hung last time may hang again, so the other modules are read and recorded
        # first.
        for name in sorted(stale, key=lambda name: self.modules[name].broken):
            self.modules[name], self._recorded = self._read(name), None
            if self._leaving.is_set():
                return  # the read may have been interrupted, so its result is not recorded
            if all(module.at is not None for module in self.modules.values()):
                self._record()
        if self._recorded is None or time.monotonic() - self._recorded >= RECORD_S:
            self._record()

    def _record(self) -> None:
        rows = [row for module in list(self.modules.values()) for row in module.user_code]
        self._user_code.register_user_code(self._worker_id, rows)
        self._recorded = time.monotonic()
        self._notify({row.plan: row.fingerprint for row in rows if row.error is None})

    def missing(self) -> dict[str, str]:
        """Return the reasons why this worker is not ready, by name.

        Before the first record, starts would be refused because their class is unknown. After
        ``FIRST_S``, the worker is ready anyway, because a module whose import never ends must not
        delay the other modules.
        """
        late = time.monotonic() - self._began > FIRST_S
        return (
            {}
            if late or self._recorded is not None
            else {"user_code": "its modules are being read for the first time"}
        )

    def state(self) -> dict[str, object]:
        """Return the facts for the worker's health report."""
        rows = [row for module in list(self.modules.values()) for row in module.user_code]
        return {
            "user_code": sum(row.error is None for row in rows if row.kind == CODE_MANAGER),
            "broken": {row.plan: row.error for row in rows if row.error is not None},
        }

    def _stale(self, module: _Module) -> bool:
        if module.at is None:
            return True
        # A broken module may depend on more than its files, so the module is loaded again every
        # minute.
        if module.broken and time.monotonic() - module.at >= RECORD_S:
            return True
        return _stamps(self._watched(module.files)) != module.stamps

    def _watched(self, files: frozenset[str]) -> set[str]:
        folder = Path(self._rules.folder)
        near = (path for pattern in ("*.py", "*/*.py") for path in folder.glob(pattern))
        return {*files, *(str(path) for path, _ in zip(near, range(FILES_MAX), strict=False))}

    def _read(self, name: str) -> _Module:
        before = _stamps(self._watched(frozenset()))
        try:
            process = HostProcess(f"module {name}", self._rules)
            try:
                reply = process.call("find", self._limit_s, no_answer, self._stay, module=name)
                found = calls.found(reply)
            finally:
                process.kill()
        except (UserCodeFailed, InvalidRequest) as why:
            log.warning("module %s cannot be used: %s", name, why)
            return _Module([self._row(name, error=str(why))], frozenset(), before, time.monotonic())
        rows = [
            UserCodeRow(**asdict(plan), queue=self._queue if plan.kind == CODE_GRAPH else None)
            for plan in found.user_code
        ]
        if name != _OURS:
            rows.append(self._row(name, fingerprint=found.fingerprint))
        files = frozenset(found.files)
        # These are the times before the read, so that a file that changed during the read makes the
        # module stale again.
        stamps = {**_stamps(self._watched(files)), **before}
        log.info("module %s has %d managers and graphs", name, len(found.user_code))
        return _Module(rows, files, stamps, time.monotonic())

    def _row(
        self, module: str, kind: str = CODE_MODULE, fingerprint: str = "", error: str | None = None
    ) -> UserCodeRow:
        return UserCodeRow(module, kind, None, "", fingerprint, error=error, queue=self._queue)

    def _stay(self) -> None:
        if self._leaving.is_set():
            raise UserCodeFailed("this worker is stopping")


def modules_in(folder: Path) -> list[str]:
    """Return the modules in this folder that import our managers or graphs, or only define
    functions.

    The files are only read here, and imported later in separate processes.
    """
    found = []
    for file in sorted(folder.glob("*.py")):
        with contextlib.suppress(OSError):
            named = file.is_file() and file.stem.isidentifier() and file.stem.isascii()
            text = file.read_text(errors="replace") if named else ""
            if _USES.search(text) or (not file.stem.startswith(_TESTS) and _only_defines(text)):
                found.append(file.stem)
    return found


@functools.lru_cache(FILES_MAX)
def _only_defines(text: str) -> bool:
    """Return whether a module with this source contains only definitions, including at least one
    function."""
    try:
        body = ast.parse(text).body
    except Exception:  # it is not Python, or is nested too deeply for the parser
        return False
    quiet = (
        isinstance(node, _PLAIN) or isinstance(getattr(node, "value", None), ast.Constant)
        for node in body
    )
    return any(isinstance(node, _FUNCTIONS) for node in body) and all(quiet)


def _stamps(files: set[str]) -> dict[str, int]:
    """Return the time of the last change to each file in nanoseconds, omitting missing files."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            found[file] = Path(file).stat().st_mtime_ns
    return found
