"""Changes of code between runs, and the results since."""

from __future__ import annotations

from dataclasses import dataclass

from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.code_changes import brought_since, code_changes
from crawler_lifecycle.domain.coverage import Coverage

OLD = Code("sha256:" + "a" * 64, "2026-11-21")
NEW = Code("sha256:" + "b" * 64, "2026-11-28")
PLAIN = Code("sha256:" + "c" * 64)


@dataclass(frozen=True)
class Ran:
    """The result of a run."""

    run_id: int
    items: int | None = 100
    price: float = 1.0
    status: str = "COMPLETED"
    lacks: str | None = None

    @property
    def fields(self) -> Coverage | None:
        return Coverage(self.items, {"price": self.price, "name": 1.0}) if self.items else None


def test_a_change_is_a_run_with_none_of_the_codes_before_it() -> None:
    codes = {9: [OLD], 7: [NEW], 6: [NEW, OLD], 5: [OLD], 4: [], 3: [OLD], 1: [PLAIN]}
    found = code_changes([9, 8, 7, 6, 5, 4, 3, 1], codes)
    assert [(change.run_id, change.code, change.before) for change in found] == [
        (9, OLD, NEW),
        (3, OLD, PLAIN),
    ]
    assert found[1].title == "run 3: version 2026-11-21, before it code cccccccccccc"
    assert code_changes([], {}) == code_changes([5], codes) == []


def test_a_broken_selector_is_named_with_its_version() -> None:
    [change] = code_changes([4, 3, 2], {4: [NEW], 3: [OLD], 2: [OLD]})
    before = [Ran(3, 90), Ran(2, 110), Ran(1, 2, status="FAILED")]
    broken = [Ran(5, 60, price=0.0, status="PROCESSING"), Ran(4, 60, price=0.0), *before]
    assert brought_since(change, broken) == (
        "Since version 2026-11-28 (run 4): 60 items (before: 100), price 0 % (before: 100 %)"
    )
    good = [Ran(4, price=0.95), *before]
    assert brought_since(change, good) == "Since version 2026-11-28 (run 4): nothing unusual"


def test_without_completed_runs_on_both_sides_nothing_is_said() -> None:
    [change] = code_changes([4, 3], {4: [NEW], 3: [OLD]})
    failed = Ran(4, None, status="FAILED")
    assert brought_since(change, [failed, Ran(3)]) is None
    assert brought_since(change, [Ran(4), Ran(3, lacks="no items")]) is None
    assert brought_since(change, [Ran(4, None), Ran(3)]) == (
        "Since version 2026-11-28 (run 4): 0 items (before: 100)"
    )
