"""Where the embedded stack finds things."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack.layout import kept_key, modules_with_plans


def test_a_checkout_has_the_manager_of_its_examples() -> None:
    assert modules_with_plans(Path(__file__).parents[2]) == ["*", "examples.graphs", "examples.managers"]
    assert modules_with_plans(Path(__file__).parent) == ["*"]


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
