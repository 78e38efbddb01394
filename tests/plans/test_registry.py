"""Which plans a worker puts on record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.plans import registry
from crawler_lifecycle.plans.process import Rules
from crawler_lifecycle.plans.registry import Registry
from crawler_lifecycle.ports.store.managers import PLAN_READING, PlanRow
from tests.plans.plans_support import module


class Recorded:
    """A plan store that remembers the last word of each worker."""

    def __init__(self) -> None:
        self.said: list[dict[str, PlanRow]] = []
        self.reading: list[dict[str, PlanRow]] = []
        """What it said before it had read anything."""
        self.away = False

    def register_plans(self, worker: str, plans: Sequence[PlanRow]) -> None:
        if self.away:
            raise StoreUnavailable("no connection")
        said = {row.plan: row for row in plans}
        (self.reading if {row.kind for row in plans} == {PLAN_READING} else self.said).append(said)

    def list_plans(self) -> list[PlanRow]:
        return list(self.said[-1].values())

    def get_plan(self, name: str, queue: str | None = None) -> PlanRow | None:
        return self.said[-1].get(name)


def registered(folder: Path, *modules: str, limit_s: float = 20.0) -> tuple[Registry, Recorded]:
    plans = Recorded()
    return Registry("w", modules, plans, Rules(folder=folder), limit_s), plans


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
    registry, plans = registered(tmp_path, name)
    assert "plans" in registry.missing()
    registry.turn()
    assert registry.missing() == {}
    shops = plans.said[-1][f"{name}:Shops"]
    assert (shops.name, shops.error, shops.kind) == ("shops", None, "manager")
    assert shops.description.startswith("Crawls all shops.")
    country = next(option for option in shops.options if option["name"] == "--country")
    told = {"aliases": [], "help": "Which country.", "default": "de", "type": "str", "required": False}
    assert country == {"name": "--country", **told}
    program = next(option for option in shops.options if option["name"] == "-g")
    assert (program["aliases"], program["flow_ids"]) == (["--program"], {"nightly": "n1"})
    assert [set(said) for said in plans.reading] == [{name}], "before it was read"
    assert registry.state() == {"plans": 2, "broken": {}}
    functions = plans.said[-1][name]
    assert (functions.kind, functions.name, functions.error) == ("module", None, None)


def test_broken_modules_are_told_and_the_others_served(tmp_path: Path) -> None:
    good = module(tmp_path, "class M(GeneratorCrawlManager):\n    name = 'm'")
    bad = [module(tmp_path, text) for text in ("import nowhere_there", "os._exit(1)", "time.sleep(3600)")]
    registry, plans = registered(tmp_path, good, *bad, "not_there_at_all", limit_s=2.0)
    registry.turn()
    errors = {plan: row.error or "" for plan, row in plans.said[-1].items()}
    assert errors[f"{good}:M"] == ""
    assert "No module named 'nowhere_there'" in errors[bad[0]]
    assert "exit code 1" in errors[bad[1]]
    assert "more than 2 s" in errors[bad[2]]
    assert "No module named 'not_there_at_all'" in errors["not_there_at_all"]
    assert set(registry.state()["broken"]) == {*bad, "not_there_at_all"}  # type: ignore[call-overload]


def test_a_module_that_hangs_does_not_hold_up_the_change_of_another_one(tmp_path: Path) -> None:
    hangs = module(tmp_path, "time.sleep(3600)")
    good = module(tmp_path, "class M(GeneratorCrawlManager):\n    name = 'm'")
    registry, plans = registered(tmp_path, hangs, good, limit_s=2.0)
    registry.turn()
    (tmp_path / f"{good}.py").write_text((tmp_path / f"{good}.py").read_text() + "\n# another one\n")
    registry.turn()
    prints = [said[f"{good}:M"].fingerprint for said in plans.said]
    assert (prints[0] != prints[1], prints[1] == prints[2], len(prints)) == (True, True, 3), (
        "said before the other hung"
    )


def test_a_change_of_a_file_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = module(tmp_path, "class Base(GeneratorCrawlManager):\n    name = 'm'")
    name = module(tmp_path, f"from {helper} import Base\nclass M(Base):\n    pass")
    told: list[dict[str, str]] = []
    plans = Recorded()
    registered_by = Registry("w", [name], plans, Rules(folder=tmp_path), told=lambda found: told.append(dict(found)))
    registered_by.turn()
    registered_by.turn()
    assert len(plans.said) == 1, "nothing has changed"
    file = tmp_path / f"{helper}.py"
    file.write_text(file.read_text() + "\n    spider = 'other'\n")
    os.utime(file, (1, 1))
    plans.away = True
    with pytest.raises(StoreUnavailable):
        registered_by.turn()
    plans.away = False
    registered_by.turn()  # and not a minute later
    first, second = (said[f"{name}:M"].fingerprint for said in plans.said)
    assert first != second
    assert [found[f"{name}:M"] for found in told] == [first, second]
    assert told[0][name] != told[1][name], "nothing that a process has loaded of any of its files is called again"
    monkeypatch.setattr(registry, "SAID_S", 0.0)
    registered_by.turn()
    assert plans.said[2] == plans.said[1], "said again after a minute"


def test_a_worker_that_leaves_says_nothing_of_what_it_did_not_read(tmp_path: Path) -> None:
    """It would take a good class off the record until another worker speaks."""
    served, plans = registered(tmp_path, module(tmp_path, "class Shops(GeneratorCrawlManager):\n    name = 'x'\n"))
    served.leave()
    served.turn()
    assert plans.said == plans.reading == []
