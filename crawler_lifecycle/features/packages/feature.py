"""The registration of this feature."""

from crawler_lifecycle.domain.incident import IncidentKind
from crawler_lifecycle.features.feature import Feature, VerbGroup

PACKAGES = Feature(
    "packages",
    tables=("store.tables",),
    subject="store.tables:package.c.name",
    check_resume="store.needs:check_resume",
    names_pool="store.needs:who_names_pool",
    verbs={"deploy": ("cli:deploy", "Deploy the code of a project as a version of a package.")},
    nouns=(
        VerbGroup(
            "package",
            "Packages: the deployed code of crawlers, with its versions.",
            {
                "list": ("cli:list_packages", "List packages with their current versions."),
                "versions": ("cli:list_versions", "List the versions of a package."),
                "use": ("cli:use", "Make a version current, such as an older one."),
                "delete": ("cli:delete", "Delete a version, or a package with all versions."),
            },
        ),
        VerbGroup(
            "canary",
            "Canaries: versions that only a share of the runs uses until they are judged.",
            {
                "list": ("cli:list_canaries", "List canaries, newest first."),
                "accept": ("cli:accept", "Make the new version current."),
                "reject": ("cli:reject", "Keep the old version current."),
            },
        ),
    ),
    workflows=("workflows:PackageInspectionWorkflow",),
    activities="compose:activities",
    watcher="gateway.upkeep:PackageUpkeep",
    pages=("gateway.ui:add_crawler_versions",),
    routes=(
        "gateway.routes:add_packages",
        "gateway.routes:add_downloads",
        "gateway.canaries:add_canaries",
    ),
    keeper="worker:keeper",
    conditions={"canary": "gateway.canaries:conditions"},
    kinds=(IncidentKind("canary_rejected", "A new version of {} was rejected"),),
)
