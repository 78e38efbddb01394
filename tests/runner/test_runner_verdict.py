"""Exit code and finish reason, as a table; and that the runner needs only the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.task import End, TaskStatus, read_end
from crawler_lifecycle.runner import contract
from crawler_lifecycle.runner.verdict import BEFORE_START, Evidence, exit_of
from tests.runner.runner_fixture import RUNNER

SPIDER = Evidence(True, False, 15, 0, None, None, True, False)
PROGRAM = SPIDER._replace(scrapy=False)


@pytest.mark.parametrize(
    ("evidence", "code", "reason"),
    [
        (SPIDER._replace(finish_reason="finished"), 0, "finished"),
        (SPIDER._replace(finish_reason="finished", exit_code=1), 1, "finished"),
        (SPIDER._replace(finish_reason="shutdown", stop_asked=True), 11, "shutdown"),
        (SPIDER._replace(finish_reason="shutdown"), 1, None),
        (SPIDER._replace(finish_reason="shutdown", exit_code=1, disk_full=True), 3, None),
        (
            SPIDER._replace(finish_reason="closespider_errorcount", exit_code=1),
            0,
            "closespider_errorcount",
        ),
        (SPIDER._replace(finish_reason="memusage_exceeded"), 1, "memusage_exceeded"),
        (SPIDER._replace(finish_reason="start_error"), 1, "start_error"),
        (SPIDER, 1, None),
        (SPIDER._replace(exit_code=1, disk_full=True), 3, None),
        (SPIDER._replace(exit_code=4, began=False), 4, None),
        (SPIDER._replace(exit_code=1, began=False), 1, None),
        (SPIDER._replace(stop_asked=True), 13, None),
        (SPIDER._replace(stop_asked=True, began=False, exit_code=1), 11, BEFORE_START),
        (
            SPIDER._replace(stop_asked=True, began=False, exit_code=None, signal=15),
            11,
            BEFORE_START,
        ),
        (SPIDER._replace(stop_asked=True, exit_code=None, signal=15), 13, None),
        (SPIDER._replace(stop_asked=True, exit_code=None, signal=9), 137, None),
        (SPIDER._replace(exit_code=None, signal=9), 137, None),
        (SPIDER._replace(exit_code=None, signal=11), 139, None),
        (SPIDER._replace(exit_code=None), 11, BEFORE_START),
        (PROGRAM, 0, "finished"),
        *(
            (PROGRAM._replace(exit_code=code), code, None)
            for code in (3, 4, 9, 11, 13, 14, 15, 17, 18, 143)
        ),
        (PROGRAM._replace(finish_reason="shutdown"), 0, "shutdown"),
        (PROGRAM._replace(finish_reason="memusage_exceeded"), 0, "memusage_exceeded"),
        (PROGRAM._replace(exit_code=1, disk_full=True), 3, None),
        (PROGRAM._replace(stop_asked=True), 11, "shutdown"),
        (PROGRAM._replace(stop_asked=True, exit_code=11), 11, "shutdown"),
        (PROGRAM._replace(stop_asked=True, exit_code=14), 13, None),
        (PROGRAM._replace(stop_asked=True, exit_code=2), 13, None),
        (PROGRAM._replace(stop_asked=True, exit_code=None, signal=2, stop_signal=2), 13, None),
    ],
)
def test_how_an_end_is_told(evidence: Evidence, code: int, reason: str | None) -> None:
    assert exit_of(evidence) == (code, reason)


_reasons = st.none() | st.sampled_from(
    ["finished", "shutdown", "memusage_exceeded", "start_error", "banned"]
)


@given(
    st.builds(
        Evidence,
        st.booleans(),
        st.booleans(),
        st.sampled_from([2, 15]),
        st.none() | st.integers(0, 255),
        st.none() | st.integers(1, 31),
        _reasons,
        st.booleans(),
        st.booleans(),
    )
)
def test_success_is_never_told_without_reason(evidence: Evidence) -> None:
    if evidence.exit_code is not None and evidence.signal is not None:
        evidence = evidence._replace(exit_code=None)
    code, reason = exit_of(evidence)
    assert 0 <= code <= 255
    ending = read_end(End(exit_code=code, finish_reason=reason))
    if ending.status is TaskStatus.SUCCEEDED:
        assert evidence.signal is None
        assert reason not in ("shutdown", "memusage_exceeded", "start_error")


@given(
    st.dictionaries(
        st.sampled_from([*contract.COUNTERS, "updated_at", "resumable", "x"]),
        st.integers() | st.text(),
    )
)
def test_only_what_makes_sense_is_taken_over(data: contract.Json) -> None:
    good = contract.valid_stats(data)
    assert all(
        type(good[name]) is int and good[name] >= 0 for name in contract.COUNTERS if name in good
    )
    assert "x" not in good


@pytest.mark.parametrize("path", sorted(RUNNER.rglob("*.py")), ids=lambda path: path.name)
def test_it_imports_the_standard_library_only(path: Path) -> None:
    allowed = set(sys.stdlib_module_names)
    if path.parent.name == "inject":
        allowed |= {"scrapy", "twisted", "crawlee"}
        allowed |= {module.stem for module in path.parent.glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in allowed for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (
                node.level == 0 and str(node.module).split(".")[0] in allowed
            )
