"""What the lifecycle needs of the outside, as Protocols, with the values that cross them.

Activities depend on these and on nothing behind them. Adapters implement them; fakes stand beside them in
``crawler_lifecycle.fakes`` and pass the same contract tests (``tests/contracts``).

Conventions: all methods block and may be called from several threads at once. All times are aware datetimes in UTC.
An error that says nothing about the object asked for (an outage, a refusal, a timeout) is raised as the matching
``*Unavailable`` error of ``domain.errors`` and is never turned into a value.
"""

from .protocols import (
    Catalogue,
    Cluster,
    Deployer,
    EventSink,
    FileArchive,
    Notifier,
    RunStore,
    SchedulerClient,
    TaskLogs,
    WorkflowDirectory,
)
from .values import (
    AddedTask,
    CorrectionRow,
    Deployed,
    Deployment,
    Details,
    Event,
    Fence,
    FileSource,
    Finding,
    FoundState,
    LogPart,
    Look,
    LookReport,
    Owner,
    QueuedTask,
    RunHandle,
    RunRow,
    TaskCounts,
    TaskRef,
    TaskRow,
    TransitionRow,
)

__all__ = [
    "AddedTask",
    "Catalogue",
    "Cluster",
    "CorrectionRow",
    "Deployed",
    "Deployer",
    "Deployment",
    "Details",
    "Event",
    "EventSink",
    "Fence",
    "FileArchive",
    "FileSource",
    "Finding",
    "FoundState",
    "LogPart",
    "Look",
    "LookReport",
    "Notifier",
    "Owner",
    "QueuedTask",
    "RunHandle",
    "RunRow",
    "RunStore",
    "SchedulerClient",
    "TaskCounts",
    "TaskLogs",
    "TaskRef",
    "TaskRow",
    "TransitionRow",
    "WorkflowDirectory",
]
