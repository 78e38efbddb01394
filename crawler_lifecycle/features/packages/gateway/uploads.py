"""Receives the zip of a version, in parts and with limits, and checks it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import IO

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.runner.package import ZIP_MAX, BadPackage, Package
from crawler_lifecycle.web.problems import Problem, refused

#: The maximum number of uploads at once, and the seconds that one may take.
UPLOADS_MAX = 4
UPLOAD_S = 300.0
#: Otherwise the server would read the rest of the body.
_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True)
class ReceivedZip:
    """A complete zip that was checked."""

    file: IO[bytes]
    digest: str
    size: int
    files: int
    scrapy: bool
    """True if it is a Scrapy project."""


class Uploads:
    """Receives zips. Only the event loop uses it."""

    def __init__(self) -> None:
        self._open = 0

    async def receive(
        self,
        stream: AsyncIterator[bytes],
        most: int = ZIP_MAX,
        convert: Callable[[IO[bytes]], IO[bytes]] | None = None,
    ) -> ReceivedZip:
        """Return the zip in the body of a request with at most ``most`` bytes. The caller closes
        its file.

        ``convert`` returns the file with the zip for the file with the body. It is called in a
        thread. Raises ``Problem`` 408, 413, 422 or 503.
        """
        if self._open >= UPLOADS_MAX:
            detail = f"{UPLOADS_MAX} packages are being received; try again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "5", **_CLOSE})
        self._open += 1
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
        try:
            async with asyncio.timeout(UPLOAD_S):
                await self._write(stream, file, most)
            if convert is not None:
                body = file
                with body:
                    file = await run_in_threadpool(convert, body)
            return await run_in_threadpool(_checked, file)
        except TimeoutError:
            file.close()
            detail = f"body: not complete after {UPLOAD_S:g} s; send it faster"
            raise Problem(408, "too_slow", detail, headers=_CLOSE) from None
        except BaseException:
            file.close()
            raise
        finally:
            self._open -= 1

    @staticmethod
    async def _write(stream: AsyncIterator[bytes], file: IO[bytes], most: int) -> None:
        size = 0
        async for part in stream:
            size += len(part)
            if size > most:
                detail = f"body: more than {most} bytes; leave out what is not code"
                raise Problem(413, "too_large", detail, headers=_CLOSE)
            await run_in_threadpool(file.write, part)


def _checked(file: IO[bytes]) -> ReceivedZip:
    """Check every file of a zip. Raises ``Problem`` 422."""
    size = file.seek(0, os.SEEK_END)
    try:
        package = Package(file)
        digest = package.digest()
    except BadPackage as error:
        raise refused("body", str(error)) from None
    scrapy = "scrapy.cfg" in package.paths
    file.seek(0)
    return ReceivedZip(file, digest, size, len(package.paths), scrapy)
