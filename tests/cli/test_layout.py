"""Where the embedded stack finds things."""

from __future__ import annotations

from pathlib import Path

from crawler_lifecycle.cli.stack.layout import modules_with_plans


def test_modules_with_plans_are_read_and_not_imported(tmp_path: Path) -> None:
    text = "from crawler_lifecycle.managers import GeneratorCrawlManager\nraise SystemExit('it was imported')\n"
    for name in ("shops.py", "no-name.py", "notes.txt"):
        (tmp_path / name).write_text(text)
    (tmp_path / "other.py").write_text("import scrapy\n")
    (tmp_path / "writes_one.py").write_text(f"TEXT = '{text}'")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    assert modules_with_plans(tmp_path) == ["shops"]


def test_a_checkout_has_the_manager_of_its_examples() -> None:
    assert modules_with_plans(Path(__file__).parents[2]) == ["examples.graphs", "examples.managers"]
