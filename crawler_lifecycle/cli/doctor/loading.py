"""Imports what checks use before their threads begin.

Threads that import the same packages at once wait for each other: the time of each check would go by, and where two
wait for one another Python hands out a module that is half loaded.
"""

from __future__ import annotations

from importlib import import_module, util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

_ADAPTERS = "crawler_lifecycle.adapters"
_S3 = (
    "boto3.session",
    "boto3.s3.inject",
    "boto3.s3.transfer",
    f"{_ADAPTERS}.archive.bundles",
    f"{_ADAPTERS}.archive.s3.archive",
    f"{_ADAPTERS}.archive.s3.upload",
)


def load(settings: Settings) -> None:
    """Import the packages of what these settings name."""
    from crawler_lifecycle.clusters.kind import kind_of

    wanted = ["anyio", "h11", "httpcore", *kind_of(settings.cluster).slow]
    if settings.archive.url.startswith("s3:") or settings.cluster.files_url is not None:
        wanted += _S3
    if settings.events.url.startswith("eventbridge:"):
        wanted += ("boto3", "botocore.config", "botocore.exceptions")
    if settings.pusher.app_id is not None and util.find_spec("pusher") is not None:
        wanted.append("pusher")  # where it is missing, its check tells
    for name in wanted:
        import_module(name)
