"""Every rule of the three sources of graphs has a test that names it, or a reason in
docs/graphs.md.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "graphs.md"
ROWS = {
    *(f"C-{n:02}" for n in range(1, 21)),
    *(f"O-{n:02}" for n in range(1, 23)),
    *(f"S-{n}" for n in range(70, 88)),
}


def test_every_rule_has_a_test_or_a_reason() -> None:
    """A test names its rules in its own name, in the table at the top of its module, or in the name
    of a case.
    """
    modules = [
        file.read_text()
        for file in sorted(HERE.glob("test_*.py"))
        if file.name != Path(__file__).name
    ]
    tested = set[str]()
    for module in modules:
        tests = set(re.findall(r"^(?:async )?def (test_\w+)", module, re.MULTILINE))
        for kind, number in re.findall(r"([cos])(\d\d)_", " ".join(tests)):
            tested.add(f"{kind.upper()}-{number}")
        for what, named in re.findall(r"^\| (.*) \| (`test_.*`) \|$", module, re.MULTILINE):
            assert set(re.findall(r"`(\w+)`", named)) <= tests, named
            tested |= set(re.findall(r"[COS]-\d\d", what))
        tested |= set(re.findall(r'^    "([COS]-\d\d) [^"]*": \(', module, re.MULTILINE))
    [left_out] = re.findall(r"^## Left out\n(.*)\Z", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^- ([COS][^(]+) \([^)]+\): .{20,}$", left_out, re.MULTILINE)
    reasons = {rule for row in rows for rule in re.findall(r"[COS]-\d\d", row)}
    assert ROWS - tested - reasons == set()
    assert reasons - ROWS == set()
