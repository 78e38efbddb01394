"""What the lifecycle needs of the outside, as Protocols, with the values that cross them.

Activities depend on these and on nothing behind them. Adapters implement them; fakes stand beside them in
``crawler_lifecycle.fakes`` and pass the same contract tests (``tests/contracts``).

Conventions: all methods block and may be called from several threads at once. All times are aware datetimes in UTC.
An error that says nothing about the object asked for (an outage, a refusal, a timeout) is raised as the matching
``*Unavailable`` error of ``domain.errors`` and is never turned into a value.
"""

from .clock import Clock as Clock
from .clock import utc_now as utc_now
from .protocols import Catalogue as Catalogue
from .protocols import Cluster as Cluster
from .protocols import Deployer as Deployer
from .protocols import EventSink as EventSink
from .protocols import EvidenceKeeper as EvidenceKeeper
from .protocols import FileArchive as FileArchive
from .protocols import FilesPlace as FilesPlace
from .protocols import KnowsRuns as KnowsRuns
from .protocols import LiveFiles as LiveFiles
from .protocols import Notifier as Notifier
from .protocols import Observer as Observer
from .protocols import SchedulerClient as SchedulerClient
from .protocols import TaskBundles as TaskBundles
from .protocols import TaskLogs as TaskLogs
from .protocols import WorkflowDirectory as WorkflowDirectory
from .rows import CorrectionRow as CorrectionRow
from .rows import CorrectionSummary as CorrectionSummary
from .rows import CorrectionTotal as CorrectionTotal
from .rows import Event as Event
from .rows import FindingRow as FindingRow
from .rows import Resumption as Resumption
from .rows import RunRow as RunRow
from .rows import TaskCounts as TaskCounts
from .rows import TaskRow as TaskRow
from .rows import TransitionRow as TransitionRow
from .rows import UnknownStatus as UnknownStatus
from .store import Store as Store
from .store.audits import AuditStore as AuditStore
from .store.audits import CorrectionReader as CorrectionReader
from .store.audits import CorrectionStore as CorrectionStore
from .store.audits import FindingReader as FindingReader
from .store.audits import FindingStore as FindingStore
from .store.completion import CompletionStore as CompletionStore
from .store.completion import ExportReader as ExportReader
from .store.completion import ExportStore as ExportStore
from .store.completion import FileRetentionStore as FileRetentionStore
from .store.deployment import DeploymentStore as DeploymentStore
from .store.deployment import WaitStore as WaitStore
from .store.events import EventReader as EventReader
from .store.events import EventStore as EventStore
from .store.health import StoreHealth as StoreHealth
from .store.initiation import AcceptanceStore as AcceptanceStore
from .store.initiation import AdditionStore as AdditionStore
from .store.initiation import AdoptionStore as AdoptionStore
from .store.initiation import InitiationStore as InitiationStore
from .store.initiation import RunNumberStore as RunNumberStore
from .store.looks import DetailStore as DetailStore
from .store.looks import LiveCounterStore as LiveCounterStore
from .store.looks import LookStore as LookStore
from .store.readers import RunFilters as RunFilters
from .store.readers import RunReader as RunReader
from .store.readers import TaskReader as TaskReader
from .store.stops import StopIntentStore as StopIntentStore
from .store.stops import StopStore as StopStore
from .store.wake_ups import OverdueStore as OverdueStore
from .store.wake_ups import SweepStore as SweepStore
from .store.wake_ups import WakeUpStore as WakeUpStore
from .values import AddedTask as AddedTask
from .values import Committed as Committed
from .values import Corrected as Corrected
from .values import Correction as Correction
from .values import Counted as Counted
from .values import Deployed as Deployed
from .values import Deployment as Deployment
from .values import Details as Details
from .values import Fence as Fence
from .values import FilePart as FilePart
from .values import FilesMissing as FilesMissing
from .values import FileSource as FileSource
from .values import FoundState as FoundState
from .values import KeptEnd as KeptEnd
from .values import LogPart as LogPart
from .values import Look as Look
from .values import LookReport as LookReport
from .values import LostRun as LostRun
from .values import ObserverHealth as ObserverHealth
from .values import Owner as Owner
from .values import QueuedTask as QueuedTask
from .values import RunHandle as RunHandle
from .values import TaskChanged as TaskChanged
from .values import TaskFileList as TaskFileList
from .values import TaskFinding as TaskFinding
from .values import TaskRecord as TaskRecord
from .values import TaskRef as TaskRef
from .values import Ticket as Ticket
