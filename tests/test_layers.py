"""The import rule of docs/architecture.md: imports only point downwards, without circles, and a
workflow stays light.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.features.feature import Feature
from tools.package_map import mapped

ROOT = Path(__file__).parent.parent / "crawler_lifecycle"

#: The layers of a feature's modules with other names, and features that are a layer of their own.
ROLES = {"feature": "features", "__init__": "features", "compose": "compose"}
OWN_LAYER = ("user_code",)

#: Which features a feature may import.
BETWEEN: dict[str, set[str]] = {
    "canaries": set(),
    "catalogue": {"canaries", "schedules", "sites", "webhooks"},
    "managers": set(),
    "graphs": {"managers"},
    "schedules": {"managers", "graphs"},
    "webhooks": set(),
    "incidents": set(),
    "packages": {"canaries", "catalogue", "schedules", "managers", "graphs"},
    "sites": set(),
    "user_code": {"managers", "graphs"},
    "scrapyd": {"packages"},
    "mcp": set(),
}

#: Parts that communicate with outside systems: each package or module with one of them.
OUTSIDE = ("adapters", "clusters", "store")

#: Independent modules of the runner: every part may import them, so that there is one definition.
SHARED = (
    "runner.safe_directory",
    "runner.item_files",
    "runner.item_reader",
    "runner.reported",
    "runner.package",
    "runner.tree",
    "runner.inject.crawl_runner_retry_after",
)

#: What each part of the package may import. An unlisted part may not exist.
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
    "clusters": {
        "domain",
        "ports",
        "settings",
        "process_contract",
        "runner",
        "background",
        "clock",
    },
    "store": {"domain", "ports", "background", "redaction", "sqlite_files", "clock", "features"},
    "workflows": {"domain", "ports", "activities", "features"},
    "temporal": {
        "domain",
        "ports",
        "activities",
        "workflows",
        "observability",
        "background",
        "redaction",
        "clock",
    },
    "compose": {"domain", "ports", "activities", *OUTSIDE, "workflows", "settings", "features"},
    "scheduler": {
        *(
            "domain",
            "ports",
            *OUTSIDE,
            "settings",
            "compose",
            "web",
            "task_tokens",
            "observability",
            "background",
        ),
        "redaction",
    },
    "gateway": {
        *(
            "domain",
            "ports",
            "activities",
            *OUTSIDE,
            "settings",
            "compose",
            "temporal",
            "web",
            "task_tokens",
        ),
        *("observability", "background", "subjects", "clock", "features"),
    },
    "features": {"domain"},
    "user_code": {
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
        *(
            "domain",
            "ports",
            "activities",
            *OUTSIDE,
            "workflows",
            "settings",
            "compose",
            "temporal",
            "web",
        ),
        *("observability", "background", "user_code", "clock", "features"),
    },
    "cli": {
        *("domain", "ports", *OUTSIDE, "settings", "compose", "temporal", "observability", "web"),
        *(
            "worker",
            "scheduler",
            "gateway",
            "dev_json",
            "subjects",
            "runner",
            "redaction",
            "sqlite_files",
        ),
        *("clock", "features"),
    },
    "dev_json": {"domain"},
    "managers": {"domain"},
    "graphs": {"domain", "dev_json"},
    "runner": set(),
    "generic": set(),
    # A user's folder: it imports what users import.
    "template": {"managers", "graphs"},
}

#: Parts whose classes it may name only for types, under ``if TYPE_CHECKING:``.
MAY_NAME: dict[str, set[str]] = {name: {"store"} for name in ("activities", "temporal")}

#: Each adapter knows one outside system: each of these third-party packages belongs to only one of
#: them.
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
        *(
            "adapters/oidc.py",
            "adapters/scheduler.py",
            "adapters/pusher.py",
            "adapters/webhooks.py",
        ),
        *("cli", "graphs/client.py"),
    ),
    "jwt": ("gateway/access/oidc.py",),
    "pusher": ("adapters/pusher.py",),
    "pyarrow": ("cli/runs/parquet.py",),
    "urllib3": ("clusters/kubernetes",),
    "fastapi": ("gateway", "scheduler", "web"),
    "jinja2": ("gateway/ui",),
    "markupsafe": ("gateway/ui",),
    "temporalio": ("activities", "workflows", "temporal", "worker"),
}


def _layer(dotted: str) -> str:
    """Return the layer of a module: ``store`` for ``features.graphs.store.rows``."""
    names = dotted.split(".")
    if names[0] != "features" or names[1] == "feature":
        return names[0]
    below = names[2] if len(names) > 2 else "features"
    return ROLES.get(below, names[1] if names[1] in OWN_LAYER else below)


def _place(path: Path) -> str:
    """Return the path of a module by its layer: ``store/graphs/rows.py`` for
    ``features/graphs/store/rows.py``.
    """
    parts = path.relative_to(ROOT).parts
    if parts[0] != "features" or len(parts) < 3:
        return "/".join(parts)
    return (
        "/".join((_part(path), parts[1], *parts[3:]))
        if parts[3:]
        else f"{_part(path)}/{parts[1]}.py"
    )


def _feature(dotted: str) -> str | None:
    """Return the feature to which a module belongs; ``None``: it belongs to the core, or is a
    record.
    """
    names = dotted.split(".")
    return names[1] if names[0] == "features" and len(names) > 2 and names[2] != "feature" else None


def _part(path: Path) -> str:
    return _layer(".".join(path.relative_to(ROOT).with_suffix("").parts))


@functools.cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of everything that a module imports; of ours including the name
    in the module.
    """
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
    """Return every statement at any depth; expressions contain no imports."""
    found: list[ast.AST] = [ast.parse(path.read_text())]
    for node in found:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, block, ())
    return found


@functools.cache
def _for_types(path: Path) -> set[int]:
    """Return the lines with imports that are only for types."""
    guards = [
        n for n in _nodes(path) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    ]
    return {line for guard in guards for line in range(guard.lineno, (guard.end_lineno or 0) + 1)}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
ROOMS = sorted({p.parent for p in MODULES if "versions" not in p.parts})


def test_imports_point_downwards() -> None:
    for path in MODULES:
        _point_downwards(path)


def _point_downwards(path: Path) -> None:
    part = _part(path)
    assert part in MAY_IMPORT, (
        f"{part} has no place in the house: docs/architecture.md and MAY_IMPORT decide"
    )
    relative, mine = _place(path), _feature(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for line, module in _imports(path):
        head, _, rest = module.partition(".")
        if head == "crawler_lifecycle":
            target, theirs = _layer(rest), _feature(rest)
            assert mine in (None, theirs) or theirs is None or theirs in BETWEEN[mine], (
                f"{relative}:{line}: {mine} may not import {theirs}"
            )
            named = target in MAY_NAME.get(part, ()) and line in _for_types(path)
            shared = rest.startswith(tuple(f"{module}." for module in SHARED))
            assert target == part or target in MAY_IMPORT[part] or named or shared, (
                f"{relative}:{line}: {part} may not import {target}"
            )
            if part == target and part in ("adapters", "clusters") and theirs is None:
                own, other = relative.split("/")[1].removesuffix(".py"), rest.split(".")[1]
                # The record of a kind is a class that each of them derives, and some store files in
                # folders in the same way. Everything in S3 has one client.
                assert other in (own, "kind", "volume") or ".s3.bucket" in rest, (
                    f"{relative}:{line}: {part} do not know each other"
                )
        elif head in ONLY_IN:
            assert relative.startswith(ONLY_IN[head]), f"{relative}:{line}: {head} is not used here"


def _floors() -> dict[str, int]:
    """Return the layer of each part in the picture of docs/architecture.md; 0 is the lowest."""
    names = {path.name: path.stem for path in ROOT.iterdir()} | {
        f"features/{name}": name for name in OWN_LAYER
    }
    picture = (ROOT.parent / "docs/architecture.md").read_text().split("```")[1]
    rows = [row.partition("#")[0].split() for row in picture.strip().split("\n")]
    return {names[name]: floor for floor, row in enumerate(reversed(rows)) for name in row}


def test_the_picture_of_the_house_is_true() -> None:
    """Every part is in it, above everything that it may import.

    A user's folder imports what users import.
    """
    floors = _floors()
    assert {*floors, "features"} == set(MAY_IMPORT)
    drawn = MAY_IMPORT.keys() - {"features", "template"}
    wrong = {
        (part, below)
        for part in drawn
        for below in MAY_IMPORT[part] & drawn
        if floors[part] <= floors[below]
    }
    assert wrong == set()


def test_the_map_of_packages_is_that_of_their_docstrings() -> None:
    page = (ROOT.parent / "CONTRIBUTING.md").read_text()
    assert mapped(page) == page, "python -m tools.package_map CONTRIBUTING.md writes it"


def test_sqlite_is_opened_in_one_place() -> None:
    """Two SQLite libraries in one process would undo each other's locks on a file, also in programs
    around the package.
    """
    around = [
        path for folder in ("tests", "tools", "benchmarks", "examples") for path in _python(folder)
    ]
    assert len(around) > 500
    imported = re.compile(r"^\s*(import|from) (sqlite3|pysqlite3|apsw)\b", re.MULTILINE)
    engines = re.compile(r"\bcreate_engine\((?!\"sqlite)")
    for path in around:
        text = path.read_text()
        assert not imported.search(text), (
            f"{path}: open the file with crawler_lifecycle.sqlite_files.connect"
        )
        ours = path.relative_to(ROOT.parent).as_posix() in (
            "tests/support/databases.py",
            "tests/test_layers.py",
        )
        assert ours or not engines.search(text), (
            f"{path}: take tests.support.filling.patient_engine"
        )


def _python(folder: str) -> list[Path]:
    return sorted((ROOT.parent / folder).rglob("*.py"))


def test_what_stands_side_by_side_imports_in_no_circle() -> None:
    """Modules and rooms in one folder, with everything in a room; imports for types count like any
    other.
    """
    for room in ROOMS:
        _no_circle(room)


def _beside(dotted: str, room: Path) -> str:
    """Return the module or room of ``room`` that contains a module; a feature's modules belong to
    their layers.
    """
    return _layer(dotted) if room == ROOT else dotted.split(".")[0]


def _no_circle(room: Path) -> None:
    beside = {path.stem for path in room.iterdir()} | set(OWN_LAYER) - {"__init__", "__pycache__"}
    before: dict[str, set[str]] = defaultdict(set)
    dotted = ".".join(room.relative_to(ROOT.parent).parts)
    for path in room.rglob("*.py"):
        mine = _beside(".".join(path.relative_to(room).with_suffix("").parts), room)
        if mine == "__init__":
            continue
        imported = (
            module.removeprefix(dotted + ".")
            for _, module in _imports(path)
            if module.startswith(dotted + ".")
        )
        before[mine] |= {_beside(name, room) for name in imported} & beside - {mine}
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        pytest.fail(f"{dotted}: a circle of imports: {' <- '.join(error.args[1])}")


#: The names in a record that a module of the core loads during its import.
LOADS: dict[str, Callable[[Feature], tuple[str, ...]]] = {
    "crawler_lifecycle.store.access": lambda feature: (feature.subject,),
    "crawler_lifecycle.store.retention.deletion": lambda feature: (feature.retain,),
    "crawler_lifecycle.store.retention.pruning": lambda feature: (feature.retain,),
    "crawler_lifecycle.store.tables": lambda feature: feature.tables,
}


def test_any_module_can_be_imported_first() -> None:
    """During its import, no module needs a module that is still being imported, not even through a
    package.
    """
    dotted = {_dotted(path): path for path in [ROOT / "__init__.py", *MODULES]}
    needs: dict[str, set[str]] = {}
    for name, path in dotted.items():
        functions = [node for node in _nodes(path) if isinstance(node, FUNCTIONS)]
        lazy = _for_types(path).union(*(_lines(node) for node in functions))
        own = {*_packages(name), name}
        found = {
            module
            for line, module in _imports(path)
            if module.startswith(ROOT.name) and line not in lazy
        }
        modules = {
            known
            for module in found
            for known in (module, module.rpartition(".")[0])
            if known in dotted
        }
        if name in LOADS:
            names = [
                feature.function(one) for feature in FEATURES for one in LOADS[name](feature) if one
            ]
            modules |= {one.partition(":")[0] for one in names}
        needs[name] = {each for module in modules for each in (*_packages(module), module)} - own
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def _packages(dotted: str) -> list[str]:
    """Return the packages around a module, which are imported before it."""
    parts = dotted.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _lines(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)


#: Libraries of data and rules, without any input or output, that single modules may import.
PURE = {
    "domain/hosts.py": {"idna", "publicsuffixlist"},
    "features/sites/domain/robots.py": {"protego"},
}


def test_domain_and_runner_need_the_standard_library_alone() -> None:
    for path in MODULES:
        if _part(path) in ("domain", "runner", "ports"):
            for line, module in _imports(path):
                head = module.split(".")[0]
                injected = "inject" in path.parts and (
                    head in ("scrapy", "twisted", "crawlee") or head.startswith("crawl_runner_")
                )
                pure = head in PURE.get(str(path.relative_to(ROOT)), ())
                ours = head == "crawler_lifecycle" or injected or pure
                known = head in sys.stdlib_module_names or ours
                assert known, f"{path}:{line}: imports {module}"


#: What a process imports, one after the other, and what it has not loaded then.
NOT_LOADED: list[tuple[str, tuple[str, ...]]] = [
    # Every process with user code has these, and a user's laptop needs no more to try that code.
    (
        """
import crawler_lifecycle.features.user_code.host, crawler_lifecycle.features.user_code.caller
import crawler_lifecycle.managers, crawler_lifecycle.managers.testing
import crawler_lifecycle.graphs.oban, crawler_lifecycle.graphs.chancy, crawler_lifecycle.graphs.testing
""",
        (
            "temporalio",
            "sqlalchemy",
            "pydantic",
            "httpx",
            "rich",
            "cyclopts",
            "asyncio",
            "urllib.request",
            "ssl",
        ),
    ),
    (
        "import crawler_lifecycle.workflows.lifecycle",
        ("sqlalchemy", "kubernetes", "boto3", "httpx", "fastapi", "pymysql", "yaml"),
    ),
    (
        "from crawler_lifecycle.compose import open_archive; open_archive('s3://bucket/prefix')",
        (
            "boto3",
            "botocore",
            "pusher",
            "kubernetes",
            "msgspec",
            "crawler_lifecycle.clusters.kubernetes",
        ),
    ),
    (
        "import crawler_lifecycle.worker.process as w; w.tracing.start('x').close()",
        ("opentelemetry",),
    ),
]


def test_nobody_loads_what_only_others_use() -> None:
    """Nobody has requested traces, or used boto3, Pusher or a Kubernetes cluster."""
    code = "import json, sys\nfound = []\n"
    for imports, heavy in NOT_LOADED:
        found = f"sorted(m for m in sys.modules if (m + '.').startswith({tuple(f'{one}.' for one in heavy)}))"
        code += f"{imports}\nfound.append({found})\n"
    command = [sys.executable, "-c", code + "print(json.dumps(found))"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin"}, check=True
    )
    assert json.loads(done.stdout) == [[]] * len(NOT_LOADED)


#: Modules of the core, and of what users import, that still name a feature. Their number only
#: decreases: the core should loop over ``FEATURES`` and name none.
STILL_NAMED = 36


def test_the_core_names_no_more_features_than_before() -> None:
    naming = [
        _place(path)
        for path in MODULES
        if path.relative_to(ROOT).parts[0] != "features"
        and any(
            _feature(module.partition(".")[2])
            for _, module in _imports(path)
            if module.startswith(ROOT.name)
        )
    ]
    assert len(naming) <= STILL_NAMED, sorted(naming)
