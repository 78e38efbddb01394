"""The registration of this feature."""

from crawler_lifecycle.features.feature import Feature, VerbGroup

CATALOGUE = Feature(
    "catalogue",
    tables=("store.tables",),
    subject="store.tables:catalogue_entry.c.name",
    verbs={
        "apply": (
            "cli.apply:apply",
            "Make pools, crawlers, sites, schedules and webhooks the same as files.",
        ),
    },
    # More verbs of a noun that the core has.
    nouns=(
        VerbGroup(
            "crawler",
            "The catalogue of crawlers.",
            {
                "set": ("cli.entries:set_entry", "Create a crawler in the database, or change it."),
                "history": ("cli.entries:history", "List the versions of a crawler."),
                "diff": ("cli.entries:diff", "Show what differs between two versions."),
                "use": ("cli.entries:use", "Use another version of a crawler."),
                "rollback": ("cli.entries:rollback", "Use the version before the present one."),
                "delete": ("cli.entries:delete", "Delete a crawler from the database."),
            },
        ),
    ),
    routes=("gateway.routes:add_entries",),
)
