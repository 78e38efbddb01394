"""The cases of the activity that handles packages."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.features.packages.ports import Inspection, InspectionOrder
from tests.activities.cases import Case
from tests.activities.harness import Harness
from tests.support.fakes.packages import put_package


def _deployed(*names: str) -> Any:
    return lambda w: InspectionOrder(put_package(w.code, *names))


def _found(w: Harness, answer: Any) -> None:
    assert answer == Inspection([{"name": "books", "args": {}}, {"name": "shops", "args": {}}])


def _refused(w: Harness, answer: Any) -> None:
    assert (answer.spiders, "1 to 100 characters" in answer.problem) == ([], True), answer


PACKAGES = [
    Case("inspect_package", "spiders", _deployed("books", "shops"), _found),
    Case("inspect_package", "an impossible name", _deployed("x" * 101), _refused),
]
