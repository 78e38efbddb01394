"""A second catalogue stands in for names that the first does not declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.domain.errors import CatalogueError

OWN = "- {name: mine, kind: command, command: [mine]}\n"
MORE = "- {name: site, kind: command, command: [generic]}\n- {name: other, kind: command, command: [other]}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    own, more = tmp_path / "own.yaml", tmp_path / "more.yaml"
    own.write_text(OWN)
    more.write_text(MORE)
    return own, more


def test_names_of_both_the_first_ones_first(files: tuple[Path, Path]) -> None:
    catalogue = YamlCatalogue(*files)
    assert [crawler.name for crawler in catalogue.all()] == ["mine", "site", "other"]
    assert catalogue.get("site") is not None
    assert catalogue.get("nobody") is None


def test_the_first_wins_as_soon_as_it_declares_a_name(files: tuple[Path, Path]) -> None:
    own, more = files
    catalogue = YamlCatalogue(own, more)
    own.write_text(OWN + "- {name: site, kind: command, command: [my-own]}\n")
    found = catalogue.get("site")
    assert found.command == ["my-own"]
    assert [crawler.name for crawler in catalogue.all()] == ["mine", "site", "other"]
    own.write_text(OWN)
    found = catalogue.get("site")
    assert found.command == ["generic"]


def test_a_second_one_that_cannot_be_used_is_named(files: tuple[Path, Path]) -> None:
    own, more = files
    more.write_text("- {name: site, kind: command, command: [x], surplus: 1}\n")
    with pytest.raises(CatalogueError, match=r"more\.yaml:1: surplus: unknown key"):
        YamlCatalogue(own, more)
