"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

MANAGERS = Feature(
    "managers",
    tables=("store.tables",),
    subject="store.tables:manager.c.manager_id",
    retain="store.retention:RETENTION",
    nouns=(
        VerbGroup(
            "manager",
            "Crawl managers: streams of runs.",
            {
                "start": (
                    "cli.start:start",
                    "Start a manager for a class, or for a crawler that runs once for each item.",
                ),
                "list": ("cli.verbs:list_managers", "List managers, newest first."),
                "describe": (
                    "cli.verbs:describe",
                    "Show everything about a manager, and its jobs.",
                ),
                "watch": ("cli.verbs:watch", "Watch a manager until it ends."),
                "wait": (
                    "cli.verbs:wait",
                    "Wait for the end of a manager; the exit code shows its outcome.",
                ),
                "stop": ("cli.verbs:stop", "Ask managers and their runs to end."),
                "force-stop": ("cli.verbs:force_stop", "End managers and their runs at once."),
                "pause": (
                    "cli.verbs:pause",
                    "Pause managers: they start no more runs until they are resumed.",
                ),
                "resume": (
                    "cli.verbs:resume",
                    "Resume a paused manager, or start the next attempt of one that has ended.",
                ),
                "add": ("cli.start:add", "Add jobs to a manager."),
                "set-limit": (
                    "cli.verbs:set_limit",
                    "Set how many runs a manager may have at once.",
                ),
                "logs": ("cli.verbs:logs", "Show the last output of a manager's class."),
                "plan": (
                    "cli.plan:plan",
                    "Show the jobs that a class would schedule; without a class, list the classes.",
                ),
            },
        ),
    ),
    routes=("gateway.routes:add_managers",),
    pages=("gateway.beginning:add_beginning", "gateway.ui:add_managers"),
    workflows=("workflows.manager:CrawlManagerWorkflow",),
    activities="compose:activities",
    recover="compose:recover",
    audited="activities.managing:SOURCES",
    conditions={"manager": "gateway.conditions:conditions"},
    kinds=(
        IncidentKind("manager_failed", "Manager {} failed"),
        IncidentKind("manager_stuck", "Manager {} is stuck"),
    ),
)
