"""The import rule of docs/architecture.md: imports point downwards only, in no circle, and a workflow stays light."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "crawler_lifecycle"

#: What speaks with outside systems: each package or module with one of them.
OUTSIDE = ("adapters", "clusters", "store")

#: Modules of the runner that stand alone: every part may import them, so that there is one definition.
SHARED = ("runner.held", "runner.item_files", "runner.item_reader")

#: What each part of the house may import of ours. A part that is not listed may not exist.
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "subjects": {"domain"},
    "task_tokens": {"domain"},
    "settings": {"domain"},
    "background": {"domain"},
    "redaction": set(),
    "clock": set(),
    "sqlite_files": {"domain"},
    "ports": {"domain"},
    "cloudevents": {"domain", "ports"},
    "process_contract": {"domain", "ports"},
    "activities": {"domain", "ports", "background", "redaction", "clock"},
    "observability": {"domain", "settings", "redaction"},
    "web": {"domain", "observability"},
    "adapters": {"domain", "ports", "cloudevents", "runner", "background", "redaction"},
    "clusters": {"domain", "ports", "settings", "process_contract", "runner", "background", "clock"},
    "store": {"domain", "ports", "background", "redaction", "sqlite_files", "clock"},
    "workflows": {"domain", "ports", "activities"},
    "temporal": {"domain", "ports", "activities", "workflows", "observability", "background", "redaction", "clock"},
    "compose": {"domain", "ports", "activities", *OUTSIDE, "workflows", "settings"},
    "scheduler": {
        *("domain", "ports", *OUTSIDE, "settings", "compose", "web", "task_tokens", "observability", "background"),
        "redaction",
    },
    "gateway": {
        *("domain", "ports", "activities", *OUTSIDE, "settings", "compose", "temporal", "web", "task_tokens"),
        *("observability", "background", "subjects", "clock"),
    },
    "plans": {
        "runner",
        "domain",
        "ports",
        *OUTSIDE,
        "settings",
        "managers",
        "graphs",
        "background",
        "observability",
        "redaction",
    },
    "worker": {
        *("domain", "ports", "activities", *OUTSIDE, "workflows", "settings", "compose", "temporal", "web"),
        *("observability", "background", "plans", "clock"),
    },
    "cli": {
        *("domain", "ports", *OUTSIDE, "settings", "compose", "temporal", "observability", "web"),
        *("worker", "scheduler", "gateway", "dev_json", "subjects", "runner", "redaction", "sqlite_files"),
        "clock",
    },
    "dev_json": {"domain"},
    "managers": {"domain"},
    "graphs": {"domain", "dev_json"},
    "runner": set(),
    "generic": set(),
    # A user's folder: it imports what users import.
    "template": {"managers", "graphs"},
}

#: Parts whose classes it may name for types alone, under ``if TYPE_CHECKING:``.
MAY_NAME: dict[str, set[str]] = {name: {"store"} for name in ("activities", "temporal")}

#: Adapters know one outside system each: these third-party packages belong to one of them alone.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "sqlalchemy": ("store",),
    "sqlite3": ("sqlite_files.py",),
    "kubernetes": ("clusters/kubernetes", "cli"),
    "msgspec": ("clusters/kubernetes",),
    "alembic": ("store",),
    "pymysql": ("store",),
    "boto3": ("adapters/archive", "adapters/eventbridge.py"),
    "botocore": ("adapters/archive", "adapters/eventbridge.py"),
    "isal": ("adapters/archive",),
    "yaml": ("adapters/catalogue.py", "cli"),
    "scrapy": ("generic", "runner/inject", "template"),
    "mcp": ("cli/mcp.py",),
    "httpx": (
        *("adapters/oidc.py", "adapters/scheduler.py", "adapters/pusher.py", "adapters/webhooks.py"),
        *("cli", "graphs/client.py"),
    ),
    "jwt": ("gateway/access/oidc.py",),
    "pusher": ("adapters/pusher.py",),
    "pyarrow": ("cli/runs/parquet.py",),
    "urllib3": ("clusters/kubernetes",),
    "fastapi": ("gateway", "scheduler", "web"),
    "jinja2": ("gateway/page",),
    "markupsafe": ("gateway/page",),
    "temporalio": ("activities", "workflows", "temporal", "worker"),
}


def _part(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


@functools.cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything that a module imports; of ours down to the name in the module."""
    package = ("crawler_lifecycle", *path.relative_to(ROOT).parts)[:-1]
    found = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    """Every statement, at whatever depth; expressions hold no imports."""
    found: list[ast.AST] = [ast.parse(path.read_text())]
    for node in found:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, block, ())
    return found


@functools.cache
def _for_types(path: Path) -> set[int]:
    """Lines of what is imported for types alone."""
    guards = [n for n in _nodes(path) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {line for guard in guards for line in range(guard.lineno, (guard.end_lineno or 0) + 1)}


MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
ROOMS = sorted({p.parent for p in MODULES if "versions" not in p.parts})


def test_imports_point_downwards() -> None:
    for path in MODULES:
        _point_downwards(path)


def _point_downwards(path: Path) -> None:
    part = _part(path)
    assert part in MAY_IMPORT, f"{part} has no place in the house: docs/architecture.md and MAY_IMPORT decide"
    relative = str(path.relative_to(ROOT))
    for line, module in _imports(path):
        head, _, rest = module.partition(".")
        if head == "crawler_lifecycle":
            target = rest.split(".")[0]
            named = target in MAY_NAME.get(part, ()) and line in _for_types(path)
            shared = rest.startswith(tuple(f"{module}." for module in SHARED))
            assert target == part or target in MAY_IMPORT[part] or named or shared, (
                f"{relative}:{line}: {part} may not import {target}"
            )
            if part == target and part in ("adapters", "clusters"):
                mine, theirs = relative.split("/")[1].removesuffix(".py"), rest.split(".")[1]
                # The record of a kind is a class that each of them derives, and some leave files in folders alike.
                assert theirs in (mine, "kind", "volume"), f"{relative}:{line}: {part} do not know each other"
        elif head in ONLY_IN:
            assert relative.startswith(ONLY_IN[head]), f"{relative}:{line}: {head} is not used here"


def test_sqlite_is_opened_in_one_place() -> None:
    """Two SQLite libraries in one process would undo each other's locks on a file, in programs around the house too."""
    around = [path for folder in ("tests", "tools", "benchmarks", "examples") for path in _python(folder)]
    assert len(around) > 500
    imported = re.compile(r"^\s*(import|from) (sqlite3|pysqlite3|apsw)\b", re.MULTILINE)
    engines = re.compile(r"\bcreate_engine\((?!\"sqlite)")
    for path in around:
        text = path.read_text()
        assert not imported.search(text), f"{path}: open the file with crawler_lifecycle.sqlite_files.connect"
        ours = path.relative_to(ROOT.parent).as_posix() in ("tests/support/databases.py", "tests/test_layers.py")
        assert ours or not engines.search(text), f"{path}: take tests.support.filling.patient_engine"


def _python(folder: str) -> list[Path]:
    return sorted((ROOT.parent / folder).rglob("*.py"))


def test_what_stands_side_by_side_imports_in_no_circle() -> None:
    """Modules and rooms of one folder, a room with everything in it; imports for types count like any other."""
    for room in ROOMS:
        _no_circle(room)


def _no_circle(room: Path) -> None:
    beside = {path.stem for path in room.iterdir()} - {"__init__", "__pycache__"}
    before: dict[str, set[str]] = defaultdict(set)
    dotted = ".".join(room.relative_to(ROOT.parent).parts)
    for path in room.rglob("*.py"):
        mine = path.relative_to(room).parts[0].removesuffix(".py")
        if mine == "__init__":
            continue
        imported = (
            module.removeprefix(dotted + ".") for _, module in _imports(path) if module.startswith(dotted + ".")
        )
        before[mine] |= {name.split(".")[0] for name in imported} & beside - {mine}
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        pytest.fail(f"{dotted}: a circle of imports: {' <- '.join(error.args[1])}")


def test_domain_and_runner_need_the_standard_library_alone() -> None:
    for path in MODULES:
        if _part(path) in ("domain", "runner", "ports"):
            for line, module in _imports(path):
                head = module.split(".")[0]
                injected = head in ("scrapy", "twisted") and "inject" in path.parts
                known = head in sys.stdlib_module_names or head == "crawler_lifecycle" or injected
                assert known, f"{path}:{line}: imports {module}"


#: What a process imports, one after the other, and what it has not loaded then.
NOT_LOADED: list[tuple[str, tuple[str, ...]]] = [
    (  # every process with users' code has these, and a user's laptop needs no more to try that code
        """
import crawler_lifecycle.plans.host, crawler_lifecycle.plans.caller
import crawler_lifecycle.managers, crawler_lifecycle.managers.testing
import crawler_lifecycle.graphs.oban, crawler_lifecycle.graphs.chancy, crawler_lifecycle.graphs.testing
""",
        ("temporalio", "sqlalchemy", "pydantic", "httpx", "rich", "cyclopts", "asyncio", "urllib.request", "ssl"),
    ),
    (
        "import crawler_lifecycle.workflows.lifecycle",
        ("sqlalchemy", "kubernetes", "boto3", "httpx", "fastapi", "pymysql", "yaml"),
    ),
    (
        "from crawler_lifecycle.compose import open_archive; open_archive('s3://bucket/prefix')",
        ("boto3", "botocore", "pusher", "kubernetes", "msgspec", "crawler_lifecycle.clusters.kubernetes"),
    ),
    ("import crawler_lifecycle.worker.process as w; w.tracing.start('x').close()", ("opentelemetry",)),
]


def test_nobody_loads_what_only_others_use() -> None:
    """No traces are asked for, and nobody has used boto3, Pusher or a Kubernetes cluster yet."""
    code = "import json, sys\nfound = []\n"
    for imports, heavy in NOT_LOADED:
        found = f"sorted(m for m in sys.modules if (m + '.').startswith({tuple(f'{one}.' for one in heavy)}))"
        code += f"{imports}\nfound.append({found})\n"
    command = [sys.executable, "-c", code + "print(json.dumps(found))"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin"}, check=True)
    assert json.loads(done.stdout) == [[]] * len(NOT_LOADED)
