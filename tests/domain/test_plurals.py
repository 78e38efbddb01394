"""Numbers with their nouns, and a check that messages use them."""

from __future__ import annotations

import re
from pathlib import Path

import crawler_lifecycle
from crawler_lifecycle.domain.plurals import count

PACKAGE = Path(crawler_lifecycle.__file__).parent


def test_one_has_no_s() -> None:
    assert [count(number, "run") for number in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]
    assert count(1, "try", "tries") == "1 try"
    assert count(2, "job waits", "jobs wait") == "2 jobs wait"


def test_a_length_is_not_written_before_a_plural() -> None:
    """``{len(rows)} runs`` is wrong for one number."""
    wrong = re.compile(
        r"\{len\(\w+\)(:,)?\} (runs|tasks|jobs|steps|items|pages|graphs|managers)\b(?! are not allowed)"
    )
    found = [
        f"{file.relative_to(PACKAGE)}: {match[0]}"
        for file in PACKAGE.rglob("*.py")
        for match in wrong.finditer(file.read_text())
    ]
    # These are always many: sizes above a limit, and runs for a median.
    assert sorted(match.partition(":")[0] for match in found) == [
        "cli/admin/cluster_gc.py",
        "clusters/local/launch.py",
        "domain/coverage.py",
        "features/graphs/domain/pages.py",
    ]
