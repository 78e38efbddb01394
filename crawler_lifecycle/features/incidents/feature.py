"""The registration of this feature."""

from crawler_lifecycle.domain.crawlers.state import CrawlerState
from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

INCIDENTS = Feature(
    "incidents",
    tables=("store.tables",),
    subject="store.tables:incident.c.incident_id",
    retain="store.incidents:RETENTION",
    verbs={"incidents": ("cli:list_incidents", "List the problems that need attention.")},
    nouns=(
        VerbGroup(
            "incident",
            "Incidents: problems that need attention, once for each cause.",
            {
                "show": ("cli:show", "Show everything about an incident."),
                "mute": ("cli:mute", "Send no events about an incident for some time."),
                "unmute": ("cli:unmute", "Send events about an incident again."),
                "assign": ("cli:assign", "Assign an incident to somebody."),
                "comment": ("cli:comment", "Record a comment about an incident."),
                "close": ("cli:close", "Close an incident by hand."),
            },
            panel="Services",
        ),
    ),
    routes=("gateway.routes:add_incidents",),
    pages=("gateway.ui:add_incidents",),
    conditions={
        "pool": "gateway.conditions:pool_conditions",
        "poll": "gateway.conditions:poll_conditions",
    },
    kinds=(
        IncidentKind("crawler_failing", "{} fails", state=CrawlerState.FAILS),
        IncidentKind("crawler_flaky", "{} is flaky", "warn", state=CrawlerState.FLAKY),
        IncidentKind("crawler_less", "{} brings less", "warn", state=CrawlerState.LESS),
        IncidentKind("crawler_empty", "{} brings empty fields", "warn", state=CrawlerState.LESS),
        IncidentKind("pool_full", "Pool {} is full", "warn", page="/pools"),
        IncidentKind("poll_overdue", "Polls are overdue", page="/parts"),
        IncidentKind("part_unwell", "Not working: {}", page="/parts"),
        IncidentKind("worker_silent", "Worker {} is silent", page="/parts"),
        IncidentKind("workflow_stuck", "Workflows cannot continue", page="/parts"),
    ),
    watcher="gateway.rounds:Rounds",
)
