"""The Temporal Schedule of audits, as the settings define it."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCStatusCode

from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.audit import AuditOrder

from .client import AUDIT_LIFE
from .errors import allowing

#: A scheduled audit that cannot start within this time is skipped.
CATCH_UP = timedelta(seconds=60)


async def keep_audit_schedule(
    client: Client, every_s: float, repair: bool, *, only_missing: bool = False
) -> None:
    """Create or update the Temporal Schedule of audits from the settings; remove it if ``every_s``
    is 0.

    A paused schedule stays paused. Audits never overlap. A missed audit is not made up for, because
    the next one finds the same problems. With ``only_missing``, an existing schedule is not
    changed. Raises ``RPCError``, for example if this account may not change schedules.
    """
    handle = client.get_schedule_handle(names.AUDIT_SCHEDULE)
    if every_s <= 0:
        if only_missing:
            return
        with allowing(RPCStatusCode.NOT_FOUND):
            await handle.delete()
        return
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.AUDIT_WORKFLOW,
            AuditOrder(repair),
            id=names.AUDIT_SCHEDULE,
            task_queue=names.QUEUE_AUDIT,
            execution_timeout=AUDIT_LIFE,
            static_summary="audit · schedule",
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=every_s))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        state=ScheduleState(
            note="compares the database, the cluster and Temporal; workers with the audit role "
            "update it"
        ),
    )

    def renewed(found: ScheduleUpdateInput) -> ScheduleUpdate:
        wanted.state.paused = found.description.schedule.state.paused
        wanted.state.note = found.description.schedule.state.note or wanted.state.note
        return ScheduleUpdate(wanted)

    try:
        await client.create_schedule(names.AUDIT_SCHEDULE, wanted)
    except ScheduleAlreadyRunningError:
        if not only_missing:
            await handle.update(renewed)
