"""A stack of real processes for a benchmark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack

#: The gateway accepts all starts of a benchmark.
_USUAL = {"LIFECYCLE_GATEWAY__MAX_WRITES_PER_S": "1000"}


@contextlib.contextmanager
def running_stack(
    folder: Path, env: Mapping[str, str] | None = None, **layout: Any
) -> Iterator[Stack]:
    """A stack with the catalogue ``crawlers.yaml`` of this folder. What still crawls is killed at
    the end of the block. ``layout`` contains further fields of ``Layout``.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_USUAL, **(env or {})}.items():
            patch.setenv(name, value)
        catalogue = folder / "crawlers.yaml"
        plan = Layout(folder / "state", only_free_ports=True, crawlers=catalogue, **layout)
        stack = Stack(plan)
        stack.start()
        try:
            yield stack
        finally:
            stack.stop(kill_crawls=True)
