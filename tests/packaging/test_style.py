"""The rules of ``tools/style.py``: each finds what it refuses, and accepts similar code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import style

CASES = [
    ("tuple_assignments", "a, b = 1, 2", "a, b = b, a"),
    ("tuple_assignments", "self.a, n = [], 0", "self.a, n = find()"),
    ("walruses", "x = f(y := 1)", "if (y := f()) and y > 1: g(y)"),
    ("walruses", "for a in f(b := 1): g(a, b)", "x = [y for a in b if (y := f(a))]"),
    ("long_returns", f"def f():\n    return [{'g(1), ' * 30}]", "def f():\n    return g(1)"),
    ("loops_over_one", "for one in runs: f(one)", "for run in runs: f(run)"),
    ("loops_over_one", "x = {k: one for k, one in runs}", "x = one"),
    ("participle_classes", "class Wanted: pass", "class WantedRuns: pass"),
    ("participle_classes", "class _Held: pass", "class Store: pass"),
    (
        "tiny_helpers",
        "def _f(x):\n    return x + 1\ng = _f(1)",
        "def _f(x):\n    return x + 1\ng = _f(1) + _f(2)",
    ),
    (
        "tiny_helpers",
        "def _f(x):\n    return x + 1\ng = _f(1)",
        "@route\ndef _f(x):\n    return x + 1\n_f",
    ),
]


@pytest.mark.parametrize(("rule", "refused", "passes"), CASES)
def test_a_rule_finds_what_it_refuses(rule: str, refused: str, passes: str, tmp_path: Path) -> None:
    find, fix = style.RULES[rule]
    assert [len([*find(_module(tmp_path, source))]) for source in (refused, passes)] == [1, 0]
    assert fix


def test_a_public_class_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "HOUSE", tmp_path)
    modules = [
        _module(tmp_path, source, name)
        for name, source in (("a", "class Row: pass"), ("b", "class Row: pass"))
    ]
    private = [_module(tmp_path, "class _Row: pass", name) for name in ("c", "d")]
    assert style.find_names_twice([*modules, *private]) == ["Row (a.py:1, b.py:1)"]


def test_the_numbers_only_go_down() -> None:
    [more] = style.list_complaints({"loops_over_one": ["a.py:1", "a.py:2"]}, {"loops_over_one": 1})
    assert more.startswith("loops_over_one: 2, at most 1; write the singular")
    [fewer] = style.list_complaints({"loops_over_one": []}, {"loops_over_one": 1})
    assert "only 0 are left" in fewer
    assert not [*style.list_complaints({"loops_over_one": ["a.py:1"]}, {"loops_over_one": 1})]


def _module(folder: Path, source: str, name: str = "one") -> style.Module:
    (path := folder / f"{name}.py").write_text(source)
    return style.read_module(path)
