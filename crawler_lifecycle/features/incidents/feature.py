"""The record of this feature."""

from __future__ import annotations

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
                "mute": ("cli:mute", "Send no events about an incident for a time."),
                "unmute": ("cli:unmute", "Send events about an incident again."),
                "assign": ("cli:assign", "Record who takes care of an incident."),
                "comment": ("cli:comment", "Record a comment about an incident."),
                "close": ("cli:close", "Close an incident by hand."),
            },
            panel="Services",
        ),
    ),
    routes=("gateway.routes:add_incidents",),
    conditions={
        "pool": "gateway.conditions:pool_conditions",
        "poll": "gateway.conditions:poll_conditions",
    },
    watcher="gateway.rounds:Rounds",
)
