"""Archives of supporting files: one zip for each attempt of a run, in a folder or an S3 bucket.

Both kinds use the same packer (``zip.packing``), so the same files always give the same bytes.
Crawlers write the folders, so their content is treated as hostile (``zip.walk``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler_lifecycle.domain.errors import InvalidRequest

from .folder import FolderArchive

if TYPE_CHECKING:
    from crawler_lifecycle.adapters.archive.s3.archive import S3Archive

__all__ = ["FolderArchive", "open_archive"]


def open_archive(url: str) -> FolderArchive | S3Archive:
    """Return the archive for a URL, without connecting to it.

    Raises ``InvalidRequest`` for any other URL.
    """
    if url.startswith("file:"):
        return FolderArchive(url)
    if url.startswith("s3:"):
        from crawler_lifecycle.adapters.archive.s3.archive import S3Archive

        return S3Archive(url)
    raise InvalidRequest(
        f"LIFECYCLE_ARCHIVE__URL: {url!r} is not allowed; give file:///path/of/a/folder or "
        "s3://bucket/prefix"
    )
