"""Failpoints: a test holds one call of one run inside of a real worker, for as long as it likes.

Python loads this module by its name when the folder is on ``PYTHONPATH``, which only tests put
there; nothing of the product knows it. It does nothing unless ``LIFECYCLE_TEST_FAILPOINTS`` names a
folder. There a file ``RUN.ROLE.PART.METHOD.before`` (or ``.after``; ``any.ROLE.any.any.before`` is
every call of a role) holds such calls until the file is removed, and each call that is held shows
itself as ``held/RUN.ROLE.PART.METHOD.before@PID-THREAD``. A call that is held hangs as on a dead
network: its thread and its place in the queue stay taken, whatever its activity's time limit says.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TARGET = "crawler_lifecycle.compose"
PARTS = ("cluster", "scheduler", "archive", "sink")


def run_of(args: tuple[Any, ...]) -> str:
    """Return the run for which a port's method is called, from its first argument."""
    first = args[0] if args else None
    if isinstance(first, str):  # the key of an archive
        return first.partition("/")[0]
    found = getattr(first, "run_id", first)
    return str(found) if isinstance(found, int) else "none"  # the name of a file


class Held:
    """A port whose calls can be held, before or after their effect."""

    def __init__(self, port: Any, folder: Path, role: str, name: str) -> None:
        self._port, self._folder, self._role, self._name = port, folder, role, name

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if method.startswith("_") or not callable(real):
            return real

        def call(*args: Any, **more: Any) -> Any:
            run = run_of(args)
            self._hold(run, method, "before")
            answer = real(*args, **more)
            self._hold(run, method, "after")
            return answer

        return call

    def _hold(self, run: str, method: str, when: str) -> None:
        point = f"{self._role}.{self._name}.{method}.{when}"
        files = [self._folder / f"{run}.{point}", self._folder / f"any.{self._role}.any.any.{when}"]
        if not any(file.exists() for file in files):
            return
        mark = self._folder / "held" / f"{run}.{point}@{os.getpid()}-{threading.get_native_id()}"
        mark.touch()
        while any(file.exists() for file in files):
            time.sleep(0.02)
        mark.unlink(missing_ok=True)


def arm(compose: Any, folder: Path) -> None:
    """Put failpoints around the ports of every role of this process."""
    original = compose.activities_of

    def activities_of(role: str, parts: Any, *more: Any, **options: Any) -> Any:
        held: dict[str, Any] = {
            name: Held(getattr(parts, name), folder, role, name) for name in PARTS
        }
        held["notifiers"] = [Held(one, folder, role, "notifier") for one in parts.notifiers]
        store = parts.store
        ports = [field.name for field in dataclasses.fields(store) if field.name != "database"]
        behind = {name: Held(getattr(store, name), folder, role, "store") for name in ports}
        held["store"] = dataclasses.replace(store, **behind)
        return original(role, dataclasses.replace(parts, **held), *more, **options)

    compose.activities_of = activities_of


class Finder(importlib.abc.MetaPathFinder):
    """Waits until the composition root is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            arm(module, self._folder)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if folder := os.environ.get("LIFECYCLE_TEST_FAILPOINTS"):
    sys.meta_path.insert(0, Finder(Path(folder)))
