"""The inspection of projects: what a project's process may do, and what the deploy reports."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.features.packages.activities import PackageActivities
from crawler_lifecycle.features.packages.adapters.code_store import CodeFolder
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.features.packages.ports import Inspection, InspectionOrder
from crawler_lifecycle.features.user_code import users_code
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.features.user_code.users_code import ProjectInspector
from crawler_lifecycle.runner.package import Package

pytestmark = pytest.mark.processes

SPIDERS = """
import os, sys, time
import scrapy
class Quotes(scrapy.Spider):
    name = "quotes"
    def __init__(self, category, pages=3, tag=None, *args, **kwargs):
        super().__init__(*args, **kwargs)
class Books(scrapy.Spider):
    name = "books"
"""


class Deployed:
    """A project in the code store, and the activity of a worker."""

    def __init__(self, folder: Path) -> None:
        self.store = CodeFolder(folder / "code")
        self.project = folder / "project"
        (self.project / "shop").mkdir(parents=True)
        (self.project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
        (self.project / "shop" / "__init__.py").touch()
        (self.project / "shop" / "settings.py").write_text('SPIDER_MODULES = ["shop.spiders"]\n')
        self.activities = PackageActivities(self.store, ProjectInspector(Rules(folder=folder)))

    def inspect(self, more: str = "") -> Inspection:
        (self.project / "shop" / "spiders.py").write_text(SPIDERS + more)
        file = io.BytesIO()
        pack(self.project, file)
        digest = Package(file).digest()
        file.seek(0)
        self.store.put(digest, file)
        return self.activities.inspect_package(InspectionOrder(digest))


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    return Deployed(tmp_path)


def test_spiders_are_found_with_the_arguments_in_their_signatures(deployed: Deployed) -> None:
    found = deployed.inspect()
    assert found.problem is None
    args = {"category": {"required": True}, "pages": {"default": "3"}, "tag": {"default": None}}
    assert found.spiders == [{"name": "books", "args": {}}, {"name": "quotes", "args": args}]


HOSTILE = {
    "raises": ("1 / 0\n", 'File "shop/spiders.py", line'),
    "exits": ("sys.exit('over')\n", "SystemExit: over"),
    "ends at once": ("os._exit(3)\n", "ended with exit code 3"),
    "never ends": ("time.sleep(3600)\n", "more than 3 s and was killed"),
    "needs what is not installed": ("import not_installed_here\n", "No module named"),
    "has too many spiders": (
        "for n in range(1001):\n"
        "    globals()[f'S{n}'] = type(f'S{n}', (scrapy.Spider,), {'name': f's{n}', '__module__': __name__})\n",
        "up to 1000 spiders",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_project_that_cannot_be_inspected_is_told(
    deployed: Deployed, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_code, "INSPECTION_S", 3.0 if case == "never ends" else 40.0)
    code, said = HOSTILE[case]
    found = deployed.inspect(code)
    assert found.spiders == []
    assert said in (found.problem or "")
    assert "crawl-inspection" not in (found.problem or ""), "paths begin in the project"


def test_a_project_is_imported_in_a_process_of_its_own_with_its_limits(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", "mysql://lifecycle:secret@db/lifecycle")
    marker = tmp_path / "marker"
    told = f"open({str(marker)!r}, 'w').write(f'{{os.getpid()}} {{sorted(os.environ)}}')\n"
    assert deployed.inspect(told).problem is None
    pid, _, names = marker.read_text().partition(" ")
    assert int(pid) != os.getpid()
    assert "LIFECYCLE" not in names
    rules = Rules(memory=256 * 1024**2, folder=tmp_path)
    deployed.activities.inspector = ProjectInspector(rules)
    assert "MemoryError" in (deployed.inspect("bytearray(2**30)\n").problem or "")


def test_damaged_code_is_not_executed(deployed: Deployed) -> None:
    deployed.inspect()
    [(digest, _)] = deployed.store.stored()
    other = f"sha256:{'0' * 64}"
    with deployed.store.open(digest) as file:
        deployed.store.put(other, file)
    with pytest.raises(NotDelivered, match=f"has the digest {digest}, not {other}"):
        deployed.activities.inspect_package(InspectionOrder(other))
    deployed.store.put(other, io.BytesIO(b"no zip"))
    with pytest.raises(NotDelivered, match="damaged"):
        deployed.activities.inspect_package(InspectionOrder(other))
    deployed.store.remove(other)
    with pytest.raises(NotDelivered, match="LIFECYCLE_CODE__URL"):
        deployed.activities.inspect_package(InspectionOrder(other))
