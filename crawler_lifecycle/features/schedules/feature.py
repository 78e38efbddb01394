"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

SCHEDULES = Feature(
    "schedules",
    tables=("store.tables",),
    subject="store.tables:schedule.c.name",
    retain="store.firings:RETENTION",
    nouns=(
        VerbGroup(
            "schedule",
            "Schedules: runs, managers and graphs at due times.",
            {
                "create": ("cli:create", "Create a schedule for a crawler, or from a file."),
                "list": ("cli:list_schedules", "List schedules."),
                "describe": (
                    "cli:describe",
                    "Show everything about a schedule, and its next due times.",
                ),
                "update": (
                    "cli:update",
                    "Change the due times of a schedule, and its rules for overlaps.",
                ),
                "pause": (
                    "cli:pause",
                    "Pause a schedule: nothing starts at its due times until it is resumed.",
                ),
                "resume": ("cli:resume", "Resume a paused schedule."),
                "trigger": ("cli:trigger", "Start the target of a schedule now."),
                "backfill": (
                    "cli:backfill",
                    "Start the target for past due times at which nothing started.",
                ),
                "firings": ("cli:firings", "List firings with their results."),
                "delete": ("cli:delete", "Delete a schedule; its recorded firings stay."),
            },
        ),
    ),
    routes=("gateway.routes:add_schedules",),
    # The form comes first, or "new" would be the name of a schedule.
    pages=("gateway.ui:add_form", "gateway.pages:add_schedules"),
    workflows=("workflows:CrawlDueWorkflow",),
    activities="compose:activities",
    recover="compose:recover",
    audited="activities.audits:SOURCES",
    keeper="temporal:keeper",
    conditions={"schedule": "gateway.conditions:conditions"},
    kinds=(
        IncidentKind("schedule_paused", "Schedule {} stopped itself", act="resume"),
        IncidentKind("schedule_missed", "Schedule {} starts nothing"),
        IncidentKind("schedule_skipped", "Schedule {} skips due times"),
        IncidentKind("schedule_idle", "Schedule {} is never due again", "warn"),
        IncidentKind("schedule_unsynced", "Schedule {} is not in Temporal"),
    ),
)
