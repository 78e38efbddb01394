"""Fetches the code of a task that executes a deployed package, and unpacks it.

The gateway serves the zip to the task's token. The digest of what was unpacked decides, so nothing
on the way can change the code.
"""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO

from .code_cache import add_to_cache, copy_cached
from .contract import DISK_FULL, FAILED, BadConfiguration
from .package import ZIP_MAX, BadPackage, Package
from .upload import NoRedirect, passing, problem_words, rest

#: Seconds after which a task fails whose code cannot be fetched.
PATIENCE_S = 600.0
_SILENCE_S = 20.0
#: The reason while a download that is under way takes longer than this.
DOWNLOADING = "it is being downloaded"
_SLOW_S = 2.0
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_BLOCK = 2**18
_POLL_S = 0.1
_STOPS = frozenset((signal.SIGTERM, signal.SIGINT))


class CodeUnavailable(Exception):
    """The code of a task could not be fetched or unpacked. The text is the reason."""

    exit_code = FAILED


class NoRoom(CodeUnavailable):
    """The disk is full."""

    exit_code = DISK_FULL


def fetch_code(environ: Mapping[str, str], wait: Callable[[str], None]) -> str | None:
    """Fetch and unpack the code of this task, and return its folder; ``None`` if a stop was
    requested meanwhile.

    ``wait`` gets the reason for which the task waits for its code, repeatedly. Raises
    ``BadConfiguration`` for code that is not what its digest says, and ``CodeUnavailable``.
    """
    try:
        return _fetch(environ, wait)
    except OSError as error:
        kind = NoRoom if error.errno == errno.ENOSPC else CodeUnavailable
        raise kind(f"The code cannot be unpacked: {error}") from None


def _fetch(environ: Mapping[str, str], wait: Callable[[str], None]) -> str | None:
    digest = environ["CRAWL_CODE_DIGEST"]
    target = environ.get("CRAWL_CODE_DIR") or tempfile.mkdtemp(prefix="crawl-code-")
    _empty(target)
    cache = environ.get("CRAWL_CODE_CACHE")
    if cache and copy_cached(cache, digest, target):
        return target
    _empty(target)
    url = environ.get("CRAWL_CODE_URL", "")
    if not url.startswith(("http://", "https://")):
        raise BadConfiguration("CRAWL_CODE_URL: missing; the task cannot fetch its code")
    with tempfile.TemporaryFile(dir=target) as file:
        if not _download(url, environ.get("CRAWL_CODE_TOKEN", ""), file, wait):
            return None
        try:
            found = Package(file).unpack(target)
        except BadPackage as error:
            raise BadConfiguration(f"the code {digest} cannot be used: {error}") from None
    if found != digest:
        raise BadConfiguration(f"the code has the digest {found}, not {digest}; deploy it again")
    if cache:
        add_to_cache(cache, digest, target)
    return target


def stop_requested() -> bool:
    """Return whether a stop signal is waiting. It stays pending for the crawler's ``Child``."""
    return bool(signal.sigpending() & _STOPS)


def _empty(folder: str) -> None:
    """Remove what is in the folder, such as the rest of a try that was killed."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _download(url: str, token: str, file: IO[bytes], wait: Callable[[str], None]) -> bool:
    """Write the zip to ``file``. Return ``False`` if a stop was requested meanwhile.

    Raises ``CodeUnavailable``, and ``OSError`` if the file cannot be written.
    """
    until = time.monotonic() + PATIENCE_S
    tries = 0
    while True:
        done = _Try(url, token, file)
        slow = time.monotonic() + _SLOW_S
        while done.is_alive() and not stop_requested():
            done.join(_POLL_S)
            if done.size and time.monotonic() > slow:
                wait(DOWNLOADING)
        if stop_requested():
            return False
        if done.broken is not None:
            raise done.broken
        if done.why is None:
            return True
        pause = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
        if not done.passing or time.monotonic() + pause > until:
            raise CodeUnavailable(f"The code cannot be fetched: {done.why}")
        wait(done.why)
        tries += 1
        again = time.monotonic() + pause
        while time.monotonic() < again and not stop_requested():
            time.sleep(_POLL_S)


class _Try(threading.Thread):
    """One download, in another thread, so that a silent gateway does not delay a stop."""

    def __init__(self, url: str, token: str, file: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
        self._file = file
        self.why: str | None = None
        """The reason why the code could not be fetched."""
        self.passing = True
        """True if another try may succeed."""
        self.broken: OSError | None = None
        """The error of the disk."""
        self.size = 0
        """The number of bytes that have arrived."""
        self.start()

    def run(self) -> None:
        """Read the zip once."""
        try:
            opener = urllib.request.build_opener(NoRedirect)
            with opener.open(self._request, timeout=_SILENCE_S) as response:
                self._copy(response)
        except urllib.error.HTTPError as error:
            self.passing = passing(error.code)
            self.why = f"the gateway answers {error.code}{problem_words(rest(error))}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.why = f"{type(error).__name__}: {error}"

    def _copy(self, response: http.client.HTTPResponse) -> None:
        try:
            self._file.seek(0)
            self._file.truncate()
        except OSError as error:
            self.broken = error
            return
        while block := response.read(_BLOCK):
            self.size += len(block)
            if self.size > ZIP_MAX:
                raise ValueError(f"it has more than {ZIP_MAX} bytes")
            try:
                self._file.write(block)
            except OSError as error:
                self.broken = error
                return
        length = response.headers.get("Content-Length")
        if length is not None and int(length) != self.size:
            raise http.client.IncompleteRead(b"", int(length) - self.size)
