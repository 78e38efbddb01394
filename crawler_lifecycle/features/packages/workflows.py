"""``PackageInspectionWorkflow`` finds the spiders of a package that is being deployed."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.calls import WithoutSignals, call
from crawler_lifecycle.workflows.requests import workflow_input

from .activities import PackageActivities
from .ports import Inspection, InspectionOrder


@workflow.defn(name=names.INSPECTION_WORKFLOW)
class PackageInspectionWorkflow(WithoutSignals):
    """The workflow of one inspection. Its input is an ``InspectionOrder``, and it fails for any
    other input.
    """

    @workflow.run
    async def run(self, order: Any = None, *surplus: Any) -> Inspection:
        """Inspect the code on a worker that executes users' code."""
        asked = workflow_input(InspectionOrder, order)
        return await call(PackageActivities.inspect_package, asked)
