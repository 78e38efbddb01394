"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

SITES = Feature(
    "sites",
    tables=("store.tables",),
    retain="store.retention:RETENTION",
    cap="store.caps:SiteCap",
    nouns=(
        VerbGroup(
            "site",
            "Sites: the limits that all runs on a site share.",
            {
                "list": ("cli:list_sites", "List sites with their states and limits."),
                "show": ("cli:show", "Show everything about a site."),
                "set": ("cli:set_limits", "Set the limits of a site."),
                "delete": ("cli:delete", "Remove the limits of a site."),
                "close": ("cli:close", "Close a site for all runs."),
                "open": ("cli:open_site", "Open a closed site for all runs."),
                "proxy": ("cli:proxy", "Run a crawler whose requests wait for their sites."),
            },
        ),
    ),
    routes=(
        "gateway.leases:add_leases",
        "gateway.robots:add_robots",
        "gateway.routes:add_sites",
    ),
    # The form comes first, or "new" would be the name of a site.
    pages=("gateway.ui:add_form", "gateway.ui:add_sites"),
    conditions={"site": "gateway.conditions:conditions"},
    kinds=(IncidentKind("site_closed", "Site {} is closed", "warn", act="open"),),
    watcher="gateway.upkeep:SiteUpkeep",
)
