"""Where the embedded stack finds things."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawler_lifecycle.cli.stack.layout import MODULES, Layout, kept_key, modules_with_plans
from crawler_lifecycle.cli.stack.stack import Stack


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


def test_a_module_that_is_new_starts_the_worker_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows the page writes the first class while the stack runs."""
    done: list[Any] = []

    def start(parts: list[Any]) -> None:
        done.extend((part.name, json.loads(part.env[MODULES])) for part in parts)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MODULES, raising=False)
    stack = Stack(tmp_path / "state")
    monkeypatch.setattr(stack, "_supervisor", SimpleNamespace(stop=done.append, start=start))
    names = ("temporal", "worker", "gateway", "scheduler", "site")
    stack._layout, stack._env = Layout(tmp_path, dict.fromkeys(names, 1)), {MODULES: "[]"}
    stack.look_for_modules()
    assert done == []
    (tmp_path / "shops.py").write_text("from crawler_lifecycle.managers import CrawlManager\n")
    stack.look_for_modules()
    stack.look_for_modules()
    assert done == [["worker"], ("worker", ["shops"])]
    (tmp_path / "more.py").write_text("import crawler_lifecycle.graphs\n")
    monkeypatch.setenv(MODULES, '["others"]')
    stack.look_for_modules()
    assert len(done) == 2, "the environment names the modules"


def test_a_key_that_could_not_be_written_is_none_and_the_next_start_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, or the process was killed: an empty key would sign for everybody."""
    file = tmp_path / "task.key"

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="no space"):
            kept_key(file)
    assert list(tmp_path.iterdir()) == []
    key = kept_key(file)
    assert (len(key), stat.S_IMODE(file.stat().st_mode)) == (64, 0o600)
    assert kept_key(file) == key
