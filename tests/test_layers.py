"""The import rule of docs/architecture.md: imports point downwards only, and a workflow stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "crawler_lifecycle"

#: What each part of the house may import of ours. A part that is not listed may not exist.
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "ports": {"domain"},
    "activities": {"domain", "ports"},
    "cloudevents": {"domain", "ports"},
    "adapters": {"domain", "ports", "cloudevents", "runner"},
    "payloads": set(),
    "workflows": {"domain", "activities", "ports", "payloads"},
    "client": {"domain", "ports", "workflows"},
    "settings": {"domain"},
    "fakes": {"domain", "ports", "cloudevents"},
    "task_tokens": {"domain"},
    "observability": {"domain", "ports", "activities", "settings"},
    "temporal": {"domain", "observability", "patience", "payloads"},
    "codec": {"domain", "observability", "payloads"},
    "compose": {"domain", "ports", "activities", "adapters", "workflows", "settings"},
    "web": {"domain", "observability"},
    "waking": {"domain", "ports"},
    "counting": {"domain", "ports"},
    "releasing": {"domain", "ports"},
    "numbering": {"domain", "ports"},
    "overdue": {"domain", "ports"},
    "beating": set(),
    "watchdog": set(),
    "patience": {"domain"},
    "worker": {
        *("domain", "ports", "activities", "adapters", "workflows", "settings", "compose", "temporal"),
        *("codec", "observability", "client", "waking", "counting", "beating", "releasing", "numbering"),
        *("overdue", "web", "watchdog"),
    },
    "scheduler": {
        *("domain", "ports", "adapters", "settings", "compose", "web", "task_tokens", "observability"),
    },
    "gateway": {
        *("domain", "ports", "adapters", "settings", "compose", "client", "temporal"),
        *("web", "task_tokens", "codec", "observability"),
    },
    "cli": {
        *("domain", "ports", "adapters", "settings", "compose", "client", "temporal", "observability"),
        *("worker", "scheduler", "gateway", "numbering", "web"),
    },
    "runner": set(),
    "generic": set(),
}

#: Adapters know one outside system each: these third-party packages belong to one of them alone.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "sqlalchemy": ("adapters/database",),
    "kubernetes": ("adapters/kubernetes", "cli"),
    "msgspec": ("adapters/kubernetes",),
    "alembic": ("adapters/database",),
    "pymysql": ("adapters/database",),
    "boto3": ("adapters/archive", "adapters/eventbridge.py"),
    "botocore": ("adapters/archive", "adapters/eventbridge.py"),
    "isal": ("adapters/archive",),
    "yaml": ("adapters/catalogue.py", "cli"),
    "scrapy": ("generic", "runner/inject"),
    "httpx": ("adapters/scheduler.py", "adapters/pusher.py", "cli"),
    "pusher": ("adapters/pusher.py",),
    "urllib3": ("adapters/kubernetes",),
    "fastapi": ("gateway", "scheduler", "web"),
    "temporalio": (
        *("activities", "workflows", "adapters/temporal.py", "temporal.py", "client.py", "compose.py", "worker.py"),
        *(
            "observability/interceptors.py",
            "observability/tracing.py",
            "codec.py",
            "payloads.py",
            "beating.py",
            "patience.py",
        ),
        *("gateway", "cli"),
    ),
}


def _part(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> list[tuple[int, str]]:
    package = ("crawler_lifecycle", *path.relative_to(ROOT).parts)[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            if module == "crawler_lifecycle":
                found += [(node.lineno, f"crawler_lifecycle.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    part = _part(path)
    assert part in MAY_IMPORT, f"{part} has no place in the house: docs/architecture.md and MAY_IMPORT decide"
    relative = str(path.relative_to(ROOT))
    for line, module in _imports(path):
        head, _, rest = module.partition(".")
        if head == "crawler_lifecycle":
            target = rest.split(".")[0]
            assert target == part or target in MAY_IMPORT[part], f"{relative}:{line}: {part} may not import {target}"
            if part == "adapters" and target == "adapters":
                mine, theirs = relative.split("/")[1].removesuffix(".py"), rest.split(".")[1]
                assert mine == theirs, f"{relative}:{line}: adapters do not know each other"
        elif head in ONLY_IN and part != "fakes":
            assert relative.startswith(ONLY_IN[head]), f"{relative}:{line}: {head} is not used here"


def test_domain_and_runner_need_the_standard_library_alone() -> None:
    for path in MODULES:
        if _part(path) in ("domain", "runner", "ports"):
            for line, module in _imports(path):
                head = module.split(".")[0]
                injected = head in ("scrapy", "twisted") and "inject" in path.parts
                known = head in sys.stdlib_module_names or head == "crawler_lifecycle" or injected
                assert known, f"{path}:{line}: imports {module}"


def test_importing_the_workflows_loads_no_adapter_library() -> None:
    heavy = ("sqlalchemy", "kubernetes", "boto3", "httpx", "fastapi", "pymysql", "yaml")
    code = f"""
import sys
import crawler_lifecycle.workflows.lifecycle
print(sorted(m for m in {heavy!r} if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
