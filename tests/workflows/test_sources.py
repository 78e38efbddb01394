"""Workflow code contains nothing that a replay cannot repeat.

Workflows are executed without Temporal's sandbox (``crawler_lifecycle.temporal.plugin``), loaded
once and shared by all workflows of a process. So these tests read the sources, and refuse whatever
is not known to be harmless.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle import workflows
from crawler_lifecycle.compose import WORKFLOWS

HOUSE = Path(workflows.__file__).parent.parent
FEATURES = sorted(path.parent.name for path in (HOUSE / "features").glob("*/__init__.py"))
#: Those of the core, and those of each feature: a room, or one module.
SOURCES = sorted([
    *(HOUSE / "workflows").rglob("*.py"),
    *(HOUSE / "features").glob("*/workflows/*.py"),
    *(HOUSE / "features").glob("*/workflows.py"),
])  # fmt: skip

#: Whole modules that a workflow may import. Of others, only these names.
WHOLE = (
    "collections.abc",
    "contextlib",
    "dataclasses",
    "functools",
    "typing",
    "pydantic",
    "temporalio",
)
ROOMS = ("domain", "ports", "activities", "workflows")
PLACES = ("crawler_lifecycle", *(f"crawler_lifecycle.features.{name}" for name in FEATURES))
OURS = tuple(f"{place}.{room}" for place in PLACES for room in ROOMS)
NAMES = {
    "__future__": {"annotations"},
    "crawler_lifecycle.features": {"FEATURES"},
    "asyncio": {"CancelledError", "Task", "create_task", "gather"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone", "UTC"},
    "json": {"dumps", "loads"},
}
#: Built-in functions that reach out of the workflow, execute text as code, or differ between
#: processes.
BUILTINS = {
    "open",
    "input",
    "print",
    "breakpoint",
    "exec",
    "eval",
    "compile",
    "__import__",
    "id",
    "hash",
    "globals",
}
#: Methods of dates that read the clock or the time zone of the machine; ``workflow.now()`` reads
#: the history.
CLOCK = {"now", "utcnow", "today", "fromtimestamp", "localtime"}
#: Parts of Temporal's own module that reach out of the workflow.
UNSAFE = {"unsafe", "extern_functions"}
#: Methods that change a list, a dictionary or a set.
CHANGES = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
}


def refused(source: str) -> list[str]:
    """Return what this source must not contain, each with its line."""
    tree = ast.parse(source)
    shared = {target.id for node in tree.body for target in _targets(node)}
    found = [(node.lineno, why) for node in ast.walk(tree) for why in _refused(node, shared)]
    inside = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in inside:
            found.append((node.lineno, "an import that is executed late"))
    return [f"line {line}: {why}" for line, why in sorted(found)]


def _targets(node: ast.AST) -> list[ast.Name]:
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target for target in targets if isinstance(target, ast.Name)]


def _refused(node: ast.AST, shared: set[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for name in names:
                if name.name not in NAMES and not _below(name.name, (*WHOLE, *OURS)):
                    yield f"import {name.name}"
        case ast.ImportFrom(module=module, names=names, level=0):
            for name in names:
                whole = _below(f"{module}.{name.name}", (*WHOLE, *OURS)) or _below(
                    str(module), (*WHOLE, *OURS)
                )
                if (
                    not whole and name.name not in NAMES.get(str(module), ())
                ) or name.name in UNSAFE:
                    yield f"from {module} import {name.name}"
        case ast.ImportFrom(module=module, names=names, level=level) if level > 1:
            for name in names:
                if str(module or name.name).split(".")[0] not in ROOMS:
                    yield f"from {'.' * level}{module or ''} import {name.name}"
        case ast.Attribute(value=ast.Name(id=module), attr=attr) if (
            module in NAMES and module != "datetime"
        ):
            if attr not in NAMES[module]:
                yield f"{module}.{attr}"
        case ast.Attribute(value=ast.Name(id="workflow"), attr=attr):
            if attr in UNSAFE:
                yield f"workflow.{attr}"
        case ast.Attribute(attr=attr) if attr in CLOCK:
            yield f"the machine's clock: {attr}"
        case ast.Call(func=ast.Attribute(attr="astimezone"), args=[], keywords=[]):
            yield "the machine's time zone: astimezone"
        case ast.Name(id=name) if name in BUILTINS:
            yield f"the function {name}"
        case ast.Global() | ast.Nonlocal():
            yield f"{type(node).__name__.lower()} {', '.join(node.names)}"
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in shared:
            yield f"a change of {name}, which all workflows share"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
            name in shared and attr in CHANGES
        ):
            yield f"a change of {name}, which all workflows share"


def _below(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_a_workflow_module_holds_nothing_that_a_replay_cannot_repeat(file: Path) -> None:
    assert refused(file.read_text()) == []


def test_every_workflow_is_among_what_is_read_here() -> None:
    assert {Path(inspect.getfile(one)) for one in WORKFLOWS} <= set(SOURCES)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        # the clock
        ("from datetime import datetime\nat = datetime.now()", "the machine's clock: now"),
        ("import datetime\nat = datetime.datetime.utcnow()", "the machine's clock: utcnow"),
        ("from datetime import date\nday = date.today()", "the machine's clock: today"),
        ("from datetime import datetime\nread = datetime.now", "the machine's clock: now"),
        ("def local(at): return at.astimezone()", "the machine's time zone: astimezone"),
        ("import time\ntime.monotonic()", "import time"),
        ("from time import monotonic", "from time import monotonic"),
        # random numbers
        ("import random\nrandom.random()", "import random"),
        ("from uuid import uuid4", "from uuid import uuid4"),
        ("import secrets", "import secrets"),
        ("seed = hash('text')", "the function hash"),
        # input and output
        ("text = open('file').read()", "the function open"),
        ("print('text')", "the function print"),
        ("from pathlib import Path", "from pathlib import Path"),
        ("import os", "import os"),
        ("import socket", "import socket"),
        ("import subprocess", "import subprocess"),
        ("import httpx", "import httpx"),
        ("import logging", "import logging"),
        ("import asyncio\nasyncio.open_connection('host', 80)", "asyncio.open_connection"),
        # threads, and what asyncio does outside of the workflow's own loop
        ("import threading", "import threading"),
        (
            "from concurrent.futures import ThreadPoolExecutor",
            "from concurrent.futures import ThreadPoolExecutor",
        ),
        ("import asyncio\nasyncio.to_thread(len, '')", "asyncio.to_thread"),
        ("import asyncio\nasyncio.wait([])", "asyncio.wait"),
        ("from asyncio import as_completed", "from asyncio import as_completed"),
        # imports
        ("def step():\n    import json", "an import that is executed late"),
        ("import importlib", "import importlib"),
        ("json = __import__('json')", "the function __import__"),
        (
            "from crawler_lifecycle.store import open_store",
            "from crawler_lifecycle.store import open_store",
        ),
        ("from ..store import GraphStore", "from ..store import GraphStore"),
        (
            "from temporalio import workflow\nwith workflow.unsafe.sandbox_unrestricted(): pass",
            "workflow.unsafe",
        ),
        ("from temporalio.workflow import unsafe", "from temporalio.workflow import unsafe"),
        # what workflows share
        ("count = 0\ndef step():\n    global count\n    count = 1", "global count"),
        ("SEEN = []\ndef step(): SEEN.append(1)", "a change of SEEN, which all workflows share"),
        (
            "SEEN: dict[str, int] = {}\ndef step(): SEEN['a'] = 1",
            "a change of SEEN, which all workflows share",
        ),
    ],
)
def test_what_a_replay_cannot_repeat_is_refused(source: str, why: str) -> None:
    assert [found.partition(": ")[2] for found in refused(source)] == [why]


@pytest.mark.parametrize(
    "source",
    [
        "from temporalio import workflow\nat = workflow.now()",
        "from datetime import datetime, timedelta, UTC\nat = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(1)",
        "import asyncio\nasync def step(work): await asyncio.create_task(work)",
        "import json\nfrom crawler_lifecycle.domain import names\nfrom .state import RunState",
        "SHARED = {'a': 1}\ndef step(): return SHARED['a'], {}.pop('a', None)",
    ],
)
def test_what_repeats_itself_is_allowed(source: str) -> None:
    assert refused(source) == []
