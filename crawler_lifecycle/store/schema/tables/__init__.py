"""The tables, one schema for SQLite and for MySQL 8 / MariaDB.

Table and column names are a contract: people build reports on them. The migrations in ``migrations/`` create exactly
this; a test compares the two on both databases.

All texts compare by code point on every database (``utf8mb4_bin``): the collation that MySQL would choose takes
``Run-1`` and ``run-1`` for one request id.
"""

from .audits import audit_finding, audit_report, schema_compatibility
from .base import metadata
from .events import outbox_counter, outbox_delivery, outbox_event
from .graphs import (
    graph,
    graph_change,
    graph_log,
    graph_page,
    graph_result,
    graph_step,
)
from .managers import (
    MANAGER_COUNTERS,
    manager,
    manager_addition,
    manager_item,
    manager_log,
    plan,
)
from .runs import (
    cancellation_log,
    correction,
    export_record,
    history_property,
    run_history,
    run_tag,
    status_transition,
    task_addition,
    task_change,
    task_finding,
    task_history,
    task_log,
    task_observation,
    task_stats,
)
from .schedules import schedule, schedule_due, webhook

__all__ = [
    "MANAGER_COUNTERS",
    "audit_finding",
    "audit_report",
    "cancellation_log",
    "correction",
    "export_record",
    "graph",
    "graph_change",
    "graph_log",
    "graph_page",
    "graph_result",
    "graph_step",
    "history_property",
    "manager",
    "manager_addition",
    "manager_item",
    "manager_log",
    "metadata",
    "outbox_counter",
    "outbox_delivery",
    "outbox_event",
    "plan",
    "run_history",
    "run_tag",
    "schedule",
    "schedule_due",
    "schema_compatibility",
    "status_transition",
    "task_addition",
    "task_change",
    "task_finding",
    "task_history",
    "task_log",
    "task_observation",
    "task_stats",
    "webhook",
]
