"""Rules of security that the source must keep, and texts that try to become code on their way through the database."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.store import open_store
from crawler_lifecycle.store.store import Store
from tests.support.databases import make_tables

ROOT = Path(__file__).parents[2] / "crawler_lifecycle"
MODULES = sorted(ROOT.rglob("*.py"))

#: Calls that turn data into code, wherever they stand.
FORBIDDEN = {
    *("eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.loads"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "tempfile.mktemp", "subprocess.getoutput"),
}


#: Where one of them may stand; nothing else is parsed.
SUSPECT = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(FORBIDDEN)))})\s*\(|\bshell\s*=")


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _made_code(path: Path) -> Iterator[str]:
    text = path.read_text()
    for name, call in _calls(ast.parse(text)) if SUSPECT.search(text) else ():
        if name in FORBIDDEN:
            yield f"{path.relative_to(ROOT)}:{call.lineno}: {name}"
        shell = next((k.value for k in call.keywords if k.arg == "shell"), None)
        if shell is not None and name.split(".")[0] in ("subprocess", "asyncio", "Popen", "run", "processes"):
            yield f"{path.relative_to(ROOT)}:{call.lineno}: a shell"


def test_data_never_becomes_code() -> None:
    assert [found for path in MODULES for found in _made_code(path)] == []


def test_sql_is_put_together_in_few_places_and_there_from_names_of_ours() -> None:
    """The linter (S608) refuses SQL made of texts; whoever silences it has to come by here."""
    silenced = {str(path.relative_to(ROOT)) for path in MODULES if "noqa: S608" in path.read_text()}
    assert silenced == {f"store/{name}.py" for name in ("base/bulk", "graphs/steps", "runs/moves")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(make_tables(f"sqlite:///{tmp_path_factory.mktemp('rules')}/runs.db"))
    store.initiation.reserve_run(RunRequest(crawler="books", flow_id="f", tags=["t"]), "first")
    yield store
    store.close()


HOSTILE = ("' OR '1'='1", "x'; DROP TABLE run_history; --", '" OR 1=1 --', "%", "_", "\\", "1) UNION SELECT 1 --", "\0")


FILTERS = ("stage", "crawler", "pool", "trigger", "outcome", "flow_id", "parent")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_filter_is_a_value_and_nothing_else(store: Store, text: str) -> None:
    for name in FILTERS:
        assert store.runs.list_runs(**{name: text}) == [], name  # type: ignore[arg-type]
    assert store.runs.list_runs(status=[text]) == []
    assert store.runs.list_runs(tags=["t", text]) == []
    assert store.runs.find_run(text) is None
    assert len(store.runs.list_runs(crawler="books")) == 1


def test_a_text_comes_back_as_it_went_in(store: Store) -> None:
    for text in HOSTILE[:-1]:
        request = RunRequest(crawler="shops", requested_by=text, args={"a": text}, flow_id=text)
        row, _ = store.initiation.reserve_run(request, f"r-{text}")
        assert row.flow_id == text
        assert row.request["args"] == {"a": text}
        assert [found.run_id for found in store.runs.list_runs(flow_id=text)] == [row.run_id]
