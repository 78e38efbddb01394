"""The public names of the packages that our façades follow: ``python -m tools.upstream [--check]``.

It downloads the newest wheel of each package from the package index, and reads its names without
importing it. It writes ``tests/graphs/upstream.json``. With ``--check``, it exits with 1 if a newer
version has other names. ``tests/graphs/test_upstream.py`` states what these names are called here.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LIST = Path(__file__).resolve().parents[1] / "tests" / "graphs" / "upstream.json"
#: For each façade, the package and its modules whose public classes and functions users import. If
#: a module has ``__all__``, only these names count, wherever they are defined. The workflows of
#: Oban Pro are on no public index.
FACADES: Mapping[str, tuple[str, Sequence[str]]] = {
    "graphs.chancy": (
        "chancy",
        (
            "chancy/__init__.py",
            "chancy/plugins/workflow/__init__.py",
            "chancy/plugins/leadership.py",
        ),
    ),
    "graphs.oban": ("oban", ("oban/__init__.py",)),
    "graphs.shub": (
        "shub-workflow",
        ("shub_workflow/graph/__init__.py", "shub_workflow/graph/task.py"),
    ),
    "managers": (
        "shub-workflow",
        ("shub_workflow/crawl.py", "shub_workflow/base.py", "shub_workflow/script.py"),
    ),
}
#: The newest Python for which wheels are requested. oban needs 3.12.
PYTHON = "3.13"
#: A statement that this Python may be too old to parse.
_TYPE = re.compile(r"^type .*? =", re.MULTILINE)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def wheel(package: str, folder: Path) -> Path:
    """Return the newest wheel. Raises ``SystemExit`` with the output of pip if there is no wheel."""
    options = [
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={PYTHON}",
        f"--dest={folder}",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{package}: {done.stderr.strip()[-1500:]}")
    [found] = folder.glob(f"{package.replace('-', '_')}-*.whl")
    return found


def names(sources: Mapping[str, str], modules: Sequence[str]) -> list[str]:
    """Yield public names: ``Class``, ``Class.member``, ``Class(parameter)`` and
    ``function(parameter)``.
    """
    trees = {path: ast.parse(_TYPE.sub("Type =", text)) for path, text in sources.items()}
    found: set[str] = set()
    for module in modules:
        for name, one in _public(trees, module).items():
            found |= set(_names(name, one))
    return sorted(found)


def _public(trees: Mapping[str, ast.Module], module: str) -> dict[str, Definition]:
    """Return the names in ``__all__`` with their definitions in the modules from which they come,
    or without ``__all__`` all names of the module.
    """
    tree = trees[module]
    exported = _exported(tree)
    if exported is None:
        return _definitions(tree.body)
    folder = module.rpartition("/")[0]
    found = {}
    for one in tree.body:
        if isinstance(one, ast.ImportFrom) and any(alias.name in exported for alias in one.names):
            parts = (one.module or "").split(".")
            path = f"{'/'.join([folder, *parts] if one.level else parts)}.py"
            found |= {
                name: each
                for name, each in _definitions(trees[path].body).items()
                if name in exported
            }
    return found


def _definitions(body: Sequence[ast.stmt]) -> dict[str, Definition]:
    return {
        one.name: one
        for one in body
        if isinstance(one, Definition) and not one.name.startswith("_")
    }


def _exported(tree: ast.Module) -> list[str] | None:
    for one in tree.body:
        if isinstance(one, ast.Assign) and [ast.unparse(target) for target in one.targets] == [
            "__all__"
        ]:
            return [str(name) for name in ast.literal_eval(one.value)]
    return None


def _names(name: str, one: Definition) -> Iterator[str]:
    yield name
    if not isinstance(one, ast.ClassDef):
        yield from (f"{name}({parameter})" for parameter in _parameters(one))
        return
    made = next(
        (m for m in one.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None
    )
    annotated = [
        m for m in one.body if isinstance(m, ast.AnnAssign) and "init=False" not in ast.unparse(m)
    ]
    fields = [m.target.id for m in annotated if isinstance(m.target, ast.Name)]
    if made is not None:
        yield from (f"{name}({parameter})" for parameter in _parameters(made))
    elif any("dataclass" in ast.unparse(decorator) for decorator in one.decorator_list):
        yield from (f"{name}({field})" for field in fields if not field.startswith("_"))
    for member in one.body:
        if isinstance(
            member, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not member.name.startswith("_"):
            yield from _names(f"{name}.{member.name}", member)
        elif isinstance(member, ast.Assign) and any(
            "Enum" in ast.unparse(base) for base in one.bases
        ):
            yield from (f"{name}.{ast.unparse(target)}" for target in member.targets)


def _parameters(one: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]
    return [
        each.arg
        for each in given
        if each.arg not in ("self", "cls") and not each.arg.startswith("_")
    ]


def read() -> dict[str, Any]:
    """Return the package of each façade, with its newest version and its names."""
    found = {}
    for facade, (package, modules) in FACADES.items():
        with tempfile.TemporaryDirectory() as folder:
            file = wheel(package, Path(folder))
            with zipfile.ZipFile(file) as archive:
                python = [name for name in archive.namelist() if name.endswith(".py")]
                sources = {name: archive.read(name).decode() for name in python}
            version = file.name.split("-")[1]
            found[facade] = {"follows": f"{package} {version}", "names": names(sources, modules)}
    return found


def main() -> None:
    found = read()
    if "--check" not in sys.argv[1:]:
        LIST.write_text(json.dumps(found, indent=1) + "\n")
        return
    known = json.loads(LIST.read_text())
    wrong = False
    for facade, new in found.items():
        old = known.get(facade, {"follows": "nothing", "names": []})
        news = set(new["names"]) ^ set(old["names"])
        print(
            f"{facade}: {old['follows']} is followed, {new['follows']} is the newest; {len(news)} "
            "other names"
        )
        print(
            "".join(f"  {'+' if name in new['names'] else '-'} {name}\n" for name in sorted(news)),
            end="",
        )
        wrong = wrong or bool(news)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
