"""The ports of the database, each as narrow as who needs it.

The database is the only place where a status changes, always by compare-and-set. Every method is one transaction, and
running it a second time with the same arguments changes nothing more. Every method that takes a ``Fence`` raises
``Fenced`` and writes nothing when the run's attempt or owner is another one. All raise ``StoreUnavailable`` when the
database cannot be used now.
"""

from __future__ import annotations

from dataclasses import dataclass

from .audits import AuditStore, CorrectionReader, CorrectionStore, FindingReader, FindingStore
from .completion import CompletionStore, ExportReader, ExportStore, FileRetentionStore
from .deployment import DeploymentStore, WaitStore
from .events import EventReader, EventStore
from .graphs import GraphReader, GraphStore
from .health import StoreHealth
from .initiation import AcceptanceStore, AdditionStore, AdoptionStore, InitiationStore, RunNumberStore
from .looks import DetailStore, LiveCounterStore, LookStore
from .managers import ManagerReader, ManagerStore, PlanStore
from .readers import RunReader, TaskReader
from .schedules import ScheduleReader, ScheduleStore
from .stops import StopIntentStore, StopStore
from .troubles import TroubleStore
from .wake_ups import OverdueStore, SweepStore, WakeUpStore
from .webhooks import WebhookReader, WebhookStore

__all__ = [
    "AcceptanceStore",
    "AdditionStore",
    "AdoptionStore",
    "AuditStore",
    "CompletionStore",
    "CorrectionReader",
    "CorrectionStore",
    "DeploymentStore",
    "DetailStore",
    "EventReader",
    "EventStore",
    "ExportReader",
    "ExportStore",
    "FileRetentionStore",
    "FindingReader",
    "FindingStore",
    "GraphReader",
    "GraphStore",
    "InitiationStore",
    "LiveCounterStore",
    "LookStore",
    "ManagerReader",
    "ManagerStore",
    "OverdueStore",
    "PlanStore",
    "RunNumberStore",
    "RunReader",
    "ScheduleReader",
    "ScheduleStore",
    "StopIntentStore",
    "StopStore",
    "Store",
    "StoreHealth",
    "SweepStore",
    "TaskReader",
    "TroubleStore",
    "WaitStore",
    "WakeUpStore",
    "WebhookReader",
    "WebhookStore",
]


@dataclass(frozen=True)
class Store:
    """All ports of one database, for whoever puts a process together; a class asks for the narrow ones."""

    initiation: InitiationStore
    additions: AdditionStore
    adoption: AdoptionStore
    run_numbers: RunNumberStore
    deployment: DeploymentStore
    looks: LookStore
    live_counters: LiveCounterStore
    stops: StopStore
    completion: CompletionStore
    exports: ExportStore
    file_retention: FileRetentionStore
    events: EventStore
    runs: RunReader
    tasks: TaskReader
    sweep: SweepStore
    wake_ups: WakeUpStore
    overdue: OverdueStore
    corrections: CorrectionStore
    audits: AuditStore
    findings: FindingStore
    managers: ManagerStore
    graphs: GraphStore
    plans: PlanStore
    schedules: ScheduleStore
    webhooks: WebhookStore
    troubles: TroubleStore
    health: StoreHealth
