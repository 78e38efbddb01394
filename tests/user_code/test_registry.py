"""The plans that a worker records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.features.managers.ports import CODE_GRAPH, CODE_READING, UserCodeRow
from crawler_lifecycle.features.user_code import registry
from crawler_lifecycle.features.user_code.functions import Functions
from crawler_lifecycle.features.user_code.pool import no_answer
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.features.user_code.registry import Registry, modules_in
from crawler_lifecycle.ports.protocols import FunctionCall, UserCodeFailed
from tests.user_code.user_code_support import module, nothing


class Recorded:
    """A plan store that keeps the last report of each worker."""

    def __init__(self) -> None:
        self.said: list[dict[str, UserCodeRow]] = []
        self.reading: list[dict[str, UserCodeRow]] = []
        """What it said before it had read anything."""
        self.away = False

    def register_user_code(self, worker: str, user_code: Sequence[UserCodeRow]) -> None:
        if self.away:
            raise StoreUnavailable("no connection")
        said = {row.plan: row for row in user_code}
        (self.reading if {row.kind for row in user_code} == {CODE_READING} else self.said).append(
            said
        )

    def list_user_code(self) -> list[UserCodeRow]:
        return list(self.said[-1].values())

    def get_user_code(self, name: str, queue: str | None = None) -> UserCodeRow | None:
        return self.said[-1].get(name)


def registered(folder: Path, *modules: str, limit_s: float = 20.0) -> tuple[Registry, Recorded]:
    user_code = Recorded()
    return Registry("w", modules, user_code, Rules(folder=folder), limit_s), user_code


def test_managers_with_their_options(tmp_path: Path) -> None:
    name = module(
        tmp_path,
        """
        class Base(GeneratorCrawlManager):
            def set_parameters_gen(self):
                yield {}

        class Shops(Base):
            '''Crawls all shops.

            And more.'''
            name = "shops"
            PROGRAMS = {
                "nightly": {"command_line": ["--flow-id", "n1"]},
                "daily": {"command_line": ["--flow-id={day}"]},
                "plain": {"command_line": ["--country", "fr"]},
            }

            def add_argparser_options(self):
                super().add_argparser_options()
                self.argparser.add_argument("--country", default="de", help="Which country.")
        """,
    )
    registry, user_code = registered(tmp_path, name)
    assert "user_code" in registry.missing()
    registry.turn()
    assert registry.missing() == {}
    shops = user_code.said[-1][f"{name}:Shops"]
    assert (shops.name, shops.error, shops.kind) == ("shops", None, "manager")
    assert shops.description.startswith("Crawls all shops.")
    country = next(option for option in shops.options if option["name"] == "--country")
    told = {
        "aliases": [],
        "help": "Which country.",
        "default": "de",
        "type": "str",
        "required": False,
    }
    assert country == {"name": "--country", **told}
    program = next(option for option in shops.options if option["name"] == "-g")
    assert (program["aliases"], program["flow_ids"]) == (["--program"], {"nightly": "n1"})
    assert [set(said) for said in user_code.reading] == [{name}], "before it was read"
    assert registry.state() == {"user_code": 2, "broken": {}}
    functions = user_code.said[-1][name]
    assert (functions.kind, functions.name, functions.error) == ("module", None, None)


def test_functions_that_build_graphs_with_their_parameters(tmp_path: Path) -> None:
    name = module(
        tmp_path,
        f"""
        from typing import Literal
        from crawler_lifecycle.graphs.oban import Workflow

        def nightly(day: str, count: int = 3, mode: Literal["all", "new"] = "new", deep: dict = None) -> Workflow:
            'Crawls a night.'

        def later(context) -> Workflow: ...
        def _private() -> Workflow: ...
        def other(day: str) -> str: ...
        def large(text: str = "x" * 100_000) -> Workflow: ...
        def of_nothing(what: "Missing") -> Workflow: ...

        def forged() -> Workflow: ...
        forged.__signature__ = "none"

        def {"g" * 300}() -> Workflow: ...
        """,
    )
    registry, user_code = registered(tmp_path, name)
    registry.turn()
    found = {row.name: row for row in user_code.list_user_code() if row.kind == CODE_GRAPH}
    assert set(found) == {"nightly", "large", "of_nothing"}
    assert {row.error for row in user_code.list_user_code()} == {None}, (
        "none of them makes its module unusable"
    )
    nightly = found["nightly"]
    assert (nightly.plan, nightly.description) == (f"{name}:nightly", "Crawls a night.")
    day, count, mode, deep = nightly.options
    assert (day["type"], day["required"]) == ("str", True)
    assert (count["type"], count["default"], count["required"]) == ("int", 3, False)
    assert (mode["type"], mode["choices"], mode["default"]) == ("str", ["all", "new"], "new")
    assert (deep["type"], deep["default"]) == ("json", None)
    assert found["large"].options[0]["default"] is None


def test_broken_modules_are_told_and_the_others_served(tmp_path: Path) -> None:
    good = module(tmp_path, "class M(GeneratorCrawlManager):\n    name = 'm'")
    bad = [
        module(tmp_path, text)
        for text in ("import nowhere_there", "os._exit(1)", "time.sleep(3600)", "x =")
    ]
    registry, user_code = registered(tmp_path, good, *bad, "not_there_at_all", limit_s=2.0)
    registry.turn()
    errors = {plan: row.error or "" for plan, row in user_code.said[-1].items()}
    assert errors[f"{good}:M"] == ""
    assert "No module named 'nowhere_there'" in errors[bad[0]]
    assert "exit code 1" in errors[bad[1]]
    assert "more than 2 s" in errors[bad[2]]
    assert errors[bad[3]].endswith(".py, line 11)"), "no place in Python itself"
    assert "No module named 'not_there_at_all'" in errors["not_there_at_all"]
    assert set(registry.state()["broken"]) == {*bad, "not_there_at_all"}  # type: ignore[call-overload]


def test_a_script_that_starts_what_it_builds_is_told_about_the_main_guard(tmp_path: Path) -> None:
    """Otherwise every process that imports it would start it again."""
    text = "from crawler_lifecycle.graphs import Workflow\ndef work(): return 1\nWorkflow().add('a', work).start()\n"
    (tmp_path / "graph.py").write_text(text)
    text = "from crawler_lifecycle.managers import CrawlManager\nclass M(CrawlManager):\n    name = spider = 'm'\n"
    (tmp_path / "manager.py").write_text(f"{text}M().run()\n")
    (tmp_path / "good.py").write_text(
        "from crawler_lifecycle.graphs import Workflow\ndef work(): return 1\n"
    )
    worker, user_code = registered(tmp_path, "graph", "manager")
    worker.turn()
    for name, line in (("graph", 3), ("manager", 4)):
        said = f'put it below a line `if __name__ == "__main__":` at the end of the file ({name}.py:{line})'
        assert said in str(user_code.said[-1][name].error)
    functions, job = (
        Functions(["good", "graph"], Rules(folder=tmp_path), 1000),
        {"path": "a", "attempt": 1, "job": {}},
    )
    with functions.use("g") as host:
        host.call(FunctionCall("good:work", "g", job, 20.0), no_answer, nothing)
        with pytest.raises(
            UserCodeFailed, match="a graph is started or queried while its module is imported"
        ):
            host.call(FunctionCall("graph:work", "g", job, 20.0), no_answer, nothing)
    functions.close()


def test_a_module_that_hangs_does_not_hold_up_the_change_of_another_one(tmp_path: Path) -> None:
    hangs = module(tmp_path, "time.sleep(3600)")
    good = module(tmp_path, "class M(GeneratorCrawlManager):\n    name = 'm'")
    registry, user_code = registered(tmp_path, hangs, good, limit_s=8.0)
    registry.turn()
    (tmp_path / f"{good}.py").write_text(
        (tmp_path / f"{good}.py").read_text() + "\n# another one\n"
    )
    registry.turn()
    prints = [said[f"{good}:M"].fingerprint for said in user_code.said]
    said = (prints[0] != prints[1], prints[1] == prints[2], len(prints))
    assert said == (True, True, 3), "said before the other hung"


def test_a_change_of_a_file_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = module(tmp_path, "class Base(GeneratorCrawlManager):\n    name = 'm'")
    name = module(tmp_path, f"from {helper} import Base\nclass M(Base):\n    pass")
    told: list[dict[str, str]] = []
    user_code = Recorded()
    registered_by = Registry(
        "w",
        [name],
        user_code,
        Rules(folder=tmp_path),
        notify=lambda found: told.append(dict(found)),
    )
    registered_by.turn()
    registered_by.turn()
    assert len(user_code.said) == 1, "nothing has changed"
    file = tmp_path / f"{helper}.py"
    file.write_text(file.read_text() + "\n    spider = 'other'\n")
    os.utime(file, (1, 1))
    user_code.away = True
    with pytest.raises(StoreUnavailable):
        registered_by.turn()
    user_code.away = False
    registered_by.turn()  # and not a minute later
    first, second = (said[f"{name}:M"].fingerprint for said in user_code.said)
    assert first != second
    assert [found[f"{name}:M"] for found in told] == [first, second]
    assert told[0][name] != told[1][name], (
        "nothing that a process has loaded of any of its files is called again"
    )
    monkeypatch.setattr(registry, "RECORD_S", 0.0)
    registered_by.turn()
    assert user_code.said[2] == user_code.said[1], "said again after a minute"


def test_modules_of_the_folder_are_read_and_not_imported(tmp_path: Path) -> None:
    text = "from crawler_lifecycle.managers import GeneratorCrawlManager\nraise SystemExit('it was imported')\n"
    for name in ("shops.py", "no-name.py", "notes.txt"):
        (tmp_path / name).write_text(text)
    (tmp_path / "other.py").write_text("import scrapy\n")
    (tmp_path / "writes_one.py").write_text(f"TEXT = '{text}'")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    assert modules_in(tmp_path) == ["shops"]


PLAIN = {
    "functions": "def fetch(page): return page\n",
    "more": '"""Words."""\nimport re\nWORD: str = "a"\nasync def fetch(): ...\nclass A: ...',
}
NOT_PLAIN = {
    "script": "def main(): ...\nmain()\n",
    "crawler": "import os\nPAGES = os.environ['PAGES']\ndef main(): ...\nif __name__ == '__main__': main()\n",
    "loops": "def main(): ...\nfor _ in range(3): main()\n",
    "classes": "class Spider: ...\n",
    "values": "A = 1\n",
    "broken": "def main(:\n",
    "deep": "def main(): ...\nA = " + "-" * 100_000 + "1",
    "wide": "def main(): ...\nA = " + "+".join("1" * 100_000),
    "null": "def main(): '\0'\n",
    "test_functions": PLAIN["functions"],
    "conftest": PLAIN["functions"],
}


def test_a_module_of_plain_functions_is_served(tmp_path: Path) -> None:
    """Steps need nothing of ours. A module that may do something at its import does not count."""
    for name, text in {**PLAIN, **NOT_PLAIN}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert modules_in(tmp_path) == ["functions", "more"]
    worker, user_code = registered(tmp_path, "*")
    worker.turn()
    assert {row.plan: row.error for row in user_code.list_user_code()} == {
        "functions": None,
        "more": None,
    }


def test_a_new_module_is_taken_up_while_the_worker_runs(tmp_path: Path) -> None:
    """People who follow the page write the first function while the stack is running."""
    worker, user_code = registered(tmp_path, "*")
    functions = Functions(worker.modules, Rules(folder=tmp_path), 1000)
    worker.turn()
    assert user_code.list_user_code() == []
    with functions.use("g") as before:
        pid = before.process.pid
    order = FunctionCall("shops:work", "g", {"path": "a", "attempt": 1, "job": {}}, 20.0)
    (tmp_path / "shops.py").write_text("import crawler_lifecycle.graphs\ndef work(): return 1\n")
    worker.turn()
    assert [row.plan for row in user_code.list_user_code()] == ["shops"]
    with functions.use("g") as host:
        assert (host.call(order, no_answer, nothing).kind, host.process.pid) == ("value", pid)
    (tmp_path / "shops.py").unlink()
    worker.turn()
    assert user_code.list_user_code() == []
    with (
        functions.use("h") as host,
        pytest.raises(UserCodeFailed, match="is not in LIFECYCLE_USER_CODE__MODULES"),
    ):
        host.call(replace(order, function="shops:other"), no_answer, nothing)
    functions.close()


def test_a_worker_that_leaves_says_nothing_of_what_it_did_not_read(tmp_path: Path) -> None:
    """It would remove a good class from the record until another worker reports it."""
    served, user_code = registered(
        tmp_path, module(tmp_path, "class Shops(GeneratorCrawlManager):\n    name = 'x'\n")
    )
    served.leave()
    served.turn()
    assert user_code.said == user_code.reading == []
