"""Each rule and defect of the original has a test that names it, or a reason in docs/managers.md."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "managers.md"
ROWS = {
    *(f"S-{n:02}" for n in (*range(1, 18), *range(20, 28), *range(30, 37), 40, *range(50, 65))),
    *(f"S-D{n}" for n in range(1, 14)),
}


def test_every_rule_has_a_test_or_a_reason() -> None:
    tests = re.findall(
        r"^def test_((?:s\d\d_|sd\d+_)+)",
        "".join(map(Path.read_text, HERE.glob("*.py"))),
        re.MULTILINE,
    )
    tested = {
        f"S-{'D' if d else ''}{number}"
        for names in tests
        for d, number in re.findall(r"s(d?)(\d+)", names)
    }
    reasons = set(re.findall(r"^- (S-D?\d+) \([^)]+\): .{20,}$", PAGE.read_text(), re.MULTILINE))
    assert tested | reasons == ROWS
    assert tested & reasons == set()
