"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

WEBHOOKS = Feature(
    "webhooks",
    tables=("store",),
    subject="store:webhook.c.name",
    retain="store:RETENTION",
    nouns=(
        VerbGroup(
            "webhook",
            "Webhooks and alerts: events for other systems, messages for people.",
            {
                "create": (
                    "cli:create",
                    "Create a webhook with its receiver and the events that it gets.",
                ),
                "list": ("cli:list_webhooks", "List webhooks."),
                "describe": ("cli:describe", "Show everything about a webhook, and its state."),
                "update": ("cli:update", "Change the receiver or the events of a webhook."),
                "pause": ("cli:pause", "Pause a webhook: it delivers nothing until it is resumed."),
                "resume": ("cli:resume", "Resume a paused webhook."),
                "test": ("cli:try_out", "Send a test event to a webhook."),
                "receive": (
                    "cli:receive",
                    "Print the deliveries of webhooks that you are trying out.",
                ),
                "deliveries": (
                    "cli:deliveries",
                    "List the deliveries of a webhook, including failed ones.",
                ),
                "delete": ("cli:delete", "Delete a webhook; its recorded deliveries stay."),
            },
            panel="Services",
            aliases=("alert",),
        ),
    ),
    routes=("gateway.routes:add_webhooks",),
    # The form comes first, or "new" would be the name of a webhook.
    pages=("gateway.ui:add_form", "gateway.ui:add_webhooks"),
    workflows=("workflows:CrawlWebhookWorkflow",),
    activities="compose:activities",
    recover="compose:recover",
    audited="activities:SOURCES",
    conditions={"webhook": "gateway.conditions:conditions"},
    kinds=(
        IncidentKind("webhook_failing", "Webhook {} fails", act="again"),
        IncidentKind("webhook_paused", "Webhook {} is paused", act="resume"),
    ),
)
