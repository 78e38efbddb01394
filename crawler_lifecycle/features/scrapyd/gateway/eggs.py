"""The egg in a form of ``addversion.json``.

``scrapyd-deploy`` sends a multipart form with a file. ScrapydWeb and SpiderKeeper send the egg as a
percent-encoded field, which has up to three times its size. The form is read in a file, so that it
needs no memory.
"""

from __future__ import annotations

import mmap
import re
import tempfile
import zipfile
from dataclasses import dataclass
from typing import IO

from crawler_lifecycle.features.packages.adapters.eggs import repack
from crawler_lifecycle.runner.package import ZIP_MAX, BadPackage

from .forms import (
    MULTIPART,
    URLENCODED,
    Form,
    Part,
    gathered,
    multipart_parts,
    refused,
    shown,
    unescaped,
    urlencoded,
    urlencoded_parts,
)

#: The maximum size of a field other than the egg in bytes, and of the form.
FIELD_MAX = 8 * 1024
FORM_MAX = 3 * ZIP_MAX + 64 * 1024
_BLOCK = 2**20
_NO_SETTINGS = (
    "it has no scrapy.cfg, and no entry point names its settings; build it with scrapyd-deploy, or "
    "with entry_points={'scrapy': ['settings = PROJECT.settings']} in setup.py"
)
_CUT_ESCAPE = re.compile(rb"%[0-9A-Fa-f]?\Z")


@dataclass
class EggForm:
    """The form of ``addversion.json``. ``convert`` fills ``project`` and ``version``."""

    content_type: str
    query: bytes
    project: str = ""
    version: str = ""

    def convert(self, file: IO[bytes]) -> IO[bytes]:
        """Return a new file with the package of the egg, for a file with the form.

        Raises ``Problem``.
        """
        encoded = self.content_type.partition(";")[0].strip().lower()
        if encoded not in (URLENCODED, MULTIPART):
            raise refused(
                f"Content-Type: {shown(self.content_type)} is not accepted; send {MULTIPART}"
            )
        if not file.tell():
            raise refused("'egg' parameter is required; send it as a file in a form")
        file.flush()
        with (
            tempfile.TemporaryFile() as egg,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body,
        ):
            form = self._read(body, egg, encoded == URLENCODED)
            self.project = form.need("project")
            self.version = form.need("version")
            return _repacked(egg)

    def _read(self, body: mmap.mmap, egg: IO[bytes], is_escaped: bool) -> Form:
        """Write the egg to a file, and return the other fields. Raises ``Problem``."""
        found = urlencoded_parts(body) if is_escaped else multipart_parts(body, self.content_type)
        pairs = []
        for part in found:
            if part.name == b"egg":
                if not egg.tell():
                    _copy(body, part, egg, is_escaped)
                continue
            value = body[part.start : min(part.end, part.start + FIELD_MAX)]
            pairs.append((part.name, unescaped(value) if is_escaped else value))
        return Form(urlencoded(self.query) | gathered(pairs))


def _copy(body: mmap.mmap, part: Part, egg: IO[bytes], is_escaped: bool) -> None:
    """Write the egg to a file, block by block."""
    at = part.start
    while at < part.end:
        block = body[at : min(at + _BLOCK, part.end)]
        cut = _CUT_ESCAPE.search(block) if at + len(block) < part.end else None
        if cut is not None and cut.start():
            block = block[: cut.start()]
        at += len(block)
        egg.write(unescaped(block) if is_escaped else block)


def _repacked(egg: IO[bytes]) -> IO[bytes]:
    """Return a new file with the package of an egg. Raises ``Problem``."""
    if not egg.tell():
        raise refused("'egg' parameter is required; send it as a file in a form")
    if not zipfile.is_zipfile(egg):
        raise refused("egg is not a ZIP file (if using curl, use egg=@path not egg=path)")
    target = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        if not repack(egg, target):
            raise BadPackage(_NO_SETTINGS)
    except BadPackage as error:
        target.close()
        raise refused(f"egg: {error}") from None
    return target
