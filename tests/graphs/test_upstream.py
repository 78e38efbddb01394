"""Each façade has the public names of the package that it follows, or a page says what to use
instead.

The names are those of the packages on PyPI: ``python -m tools.upstream`` renews the list.
"""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from crawler_lifecycle import managers
from crawler_lifecycle.graphs import chancy, oban, shub
from tools import upstream

DOCS = Path(__file__).parents[2] / "docs"
FACADES: dict[str, ModuleType] = {
    "graphs.chancy": chancy,
    "graphs.oban": oban,
    "graphs.shub": shub,
    "managers": managers,
}
LIST: dict[str, Any] = json.loads(upstream.LIST.read_text())
#: Properties there that are attributes of our objects.
OF_OBJECTS = ("WorkFlowManager.is_resumed",)
#: Parameters that are only given by position, as in all examples of the documents.
BY_POSITION = ("Job.with_*(*)", "WorkflowPlugin.process_workflow(*)", "WorkflowPlugin.run(*)")
#: ``**options`` of ours that accept only what is named here.
OPTIONS = {
    oban.worker: {"queue", "priority", "max_attempts", "scheduled_at", "schedule_in", "meta"}
}


def left_out(facade: str) -> tuple[list[str], str]:
    """Return the patterns in the table of the page, and the text above it."""
    page = "managers.md" if facade == "managers" else "graphs.md"
    [table] = re.findall(
        r"^#+ Names left out\n(.*?)^#", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    package = LIST[facade]["follows"].partition(" ")[0]
    rows = re.findall(rf"^- {package}: (.+?): .{{15,}}$", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)], table.partition(
        "\n- "
    )[0]


def there(module: ModuleType, name: str) -> bool:
    """Return whether this name, or one of its parameters, is in a façade."""
    named, _, parameter = name.rstrip(")").partition("(")
    found: Any = module
    for part in named.split("."):
        if not hasattr(found, part) and inspect.isclass(found) and issubclass(found, chancy.Job):
            found = found(print)  # it creates its ``with_…`` on request
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    if not parameter:
        return True
    if found in OPTIONS:
        return parameter in OPTIONS[found]
    known = inspect.signature(found).parameters
    return parameter in known or any(one.kind is one.VAR_KEYWORD for one in known.values())


@pytest.mark.parametrize("facade", FACADES)
def test_every_name_is_there_or_on_the_page(facade: str) -> None:
    known = (*BY_POSITION, *OF_OBJECTS)
    given = [
        name for name in LIST[facade]["names"] if not any(fnmatchcase(name, one) for one in known)
    ]
    missing = [name for name in given if not there(FACADES[facade], name)]
    patterns, _ = left_out(facade)
    assert [name for name in missing if not any(fnmatchcase(name, one) for one in patterns)] == []
    unneeded = [one for one in patterns if not any(fnmatchcase(name, one) for name in missing)]
    assert unneeded == [], "the page leaves out what is there"


@pytest.mark.parametrize("facade", FACADES)
def test_each_facade_names_the_version_that_it_follows(facade: str) -> None:
    follows = LIST[facade]["follows"]
    assert follows == FACADES[facade].FOLLOWS
    assert follows in left_out(facade)[1]


def test_names_are_read_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is not imported, so it may be for any Python."""
    init = "from .a import A, f\nfrom pkg.b import E\n__all__ = ('A', 'f', 'E')\n"
    a = """
type X[T] = int
@dataclass
class A:
    one: int
    _two: int
    three: str = field(init=False)
    class B:
        def __init__(self, x, *, y, _z): ...
    @staticmethod
    async def go(there): ...
    def _hidden(self): ...
class Other: ...
def f(a, /, b, *, c): ...
"""
    with zipfile.ZipFile(tmp_path / "pkg-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("pkg/__init__.py", init)
        archive.writestr("pkg/a.py", a)
        archive.writestr("pkg/b.py", "class E(enum.Enum):\n    ON = 1\n")
    monkeypatch.setattr(upstream, "FACADES", {"ours": ("pkg", ("pkg/__init__.py",))})
    monkeypatch.setattr(upstream, "wheel", lambda package, folder: next(tmp_path.glob("*.whl")))
    names = [
        "A",
        "A(one)",
        "A.B",
        "A.B(x)",
        "A.B(y)",
        "A.go",
        "A.go(there)",
        "E",
        "E.ON",
        "f",
        "f(a)",
        "f(b)",
        "f(c)",
    ]
    assert upstream.read() == {"ours": {"follows": "pkg 1.2", "names": names}}
