"""A location in S3 by its URL, and a client for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from crawler_lifecycle.adapters.archive.limits import checked_key
from crawler_lifecycle.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from botocore.client import BaseClient


def connect(root: str, connect_s: float, read_s: float, tries: int) -> BaseClient:
    """A client as boto3's own settings say. Raises ``NotDelivered`` that names what is missing."""
    import boto3.session
    from botocore.config import Config

    from .errors import S3_ERRORS, not_delivered

    config = Config(
        # Said explicitly for the addresses that are signed for others; requests of our own have it anyway.
        signature_version="s3v4",
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": tries},
        # Content-MD5 guards every part and is understood everywhere; boto3's own trailers are not.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="crawler-lifecycle",
    )
    try:
        session = boto3.session.Session()
        # boto3 itself knows only AWS_DEFAULT_REGION; containers on AWS are given AWS_REGION. An address that is signed
        # for another region is refused, and whoever uses it cannot ask again as boto3 does.
        where = session.region_name or os.environ.get("AWS_REGION")
        client: BaseClient = session.client("s3", region_name=where, config=config)
    except (*S3_ERRORS, ValueError) as error:
        raise not_delivered(root, "no connection can be made", error) from error
    return client


def parsed(url: str, setting: str) -> tuple[str, str]:
    """Bucket and prefix; the prefix is empty or ends with a slash. Raises ``InvalidRequest``."""
    import re

    found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url, re.DOTALL)
    prefix = (found.group(2) or "").strip("/") if found else ""
    try:
        if found is None or ".." in found.group(1):
            raise InvalidRequest("no bucket")
        if prefix:
            checked_key(prefix)
    except InvalidRequest:
        raise InvalidRequest(
            f"{setting}: {url!r} is not allowed; give s3://bucket or s3://bucket/prefix of plain names"
        ) from None
    return found.group(1), f"{prefix}/" if prefix else ""
