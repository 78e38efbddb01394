"""Audits in a testbed: their grace periods have passed, and they run from start to report."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHandle

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditReport, AuditRules
from tests.support.testbed import WorkflowHarness

#: Grace periods that end as soon as something is seen.
AT_ONCE = AuditRules(grace_s=0, orphan_grace_s=0, start_grace_s=0, resend_s=0)


async def audit(
    testbed: WorkflowHarness,
    repair: bool = True,
    unknown: str = "leave",
    troubles: Sequence[str] = (),
) -> AuditReport:
    """Execute one audit, and return its report."""
    handle: WorkflowHandle[Any, AuditReport] = await testbed.client.start_workflow(
        names.AUDIT_WORKFLOW,
        {"repair": repair, "unknown": unknown},
        id=f"audit/{uuid.uuid4()}",
        task_queue=names.QUEUE_AUDIT,
        result_type=AuditReport,
    )
    testbed.handles.append(handle)
    report = await handle.result()
    assert report.troubles == list(troubles)
    return report
