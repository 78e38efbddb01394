"""The inspection of deployed code."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from crawler_lifecycle.activities.shared import activity_method
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.protocols import UserCodeFailed
from crawler_lifecycle.runner.package import BadPackage, Package

from .domain.version import check_spiders
from .ports import CodeStore, Inspection, InspectionOrder, Inspector


@dataclass
class PackageActivities:
    """Activities of packages, on workers that execute users' code."""

    code: CodeStore
    inspector: Inspector

    @activity_method
    def inspect_package(self, order: InspectionOrder) -> Inspection:
        """Import a Scrapy project, and return its spiders. Second execution: does the same."""
        with tempfile.TemporaryDirectory(prefix="crawl-inspection-") as folder:
            with contextlib.closing(self.code.open(order.digest)) as file:
                try:
                    found = Package(file).unpack(folder)
                except BadPackage as error:
                    raise NotDelivered(f"the stored code is damaged: {error}") from None
            if found != order.digest:
                raise NotDelivered(f"the stored code has the digest {found}, not {order.digest}")
            try:
                report = self.inspector.spiders(Path(folder))
            except UserCodeFailed as error:
                return Inspection(problem=str(error))
        return _read(report)


def _read(report: object) -> Inspection:
    """Return the report of a project's process, after a check."""
    match report:
        case {"failed": str(problem)}:
            return Inspection(problem=problem)
        case {"spiders": spiders}:
            try:
                return Inspection(check_spiders(spiders))
            except InvalidRequest as error:
                return Inspection(problem=str(error))
    return Inspection(problem="its process sent no spiders")
