"""Crawlee for Node and Python: its storage folder, its memory limit, and its counters."""

from __future__ import annotations

import os
import re

from .contract import Json
from .safe_directory import NotOurs, SafeDirectory

#: Each crawler in a process has its own file. These are the names of the first four files, for Node
#: and for Python.
_FILES = [
    name
    for n in range(4)
    for name in (f"SDK_CRAWLER_STATISTICS_{n}.json", f"__CRAWLER_STATISTICS_{n}")
]
#: In a file, the numbers come first and the list of all errors comes last, so only the beginning is
#: read. Node writes the file in place. Because the file may be half-written, a number counts only
#: if a delimiter follows it. Numbers per minute are ignored, because they change without any
#: progress.
_READ_MAX = 64 * 1024
_NUMBER = re.compile(rb'"(requests?(?!\w*PerMinute)\w{1,40})"\s*:\s*(\d{1,15})(?:\.\d*)?\s*[,}]')
#: A shorter interval than Crawlee's default of one minute, in milliseconds.
_PERSIST_MS = "2000"


class Crawlee:
    """The storage of a Crawlee crawl, in the state folder that all attempts share."""

    def __init__(self, env: dict[str, str], state_dir: str, *, resume: bool) -> None:
        """Add Crawlee's variables, which other programs ignore. Variables from the catalogue take
        precedence.
        """
        self._folder = env.setdefault("CRAWLEE_STORAGE_DIR", os.path.join(state_dir, "crawlee"))
        env.setdefault("CRAWLEE_PERSIST_STATE_INTERVAL_MILLIS", _PERSIST_MS)
        env.setdefault("CRAWLEE_PURGE_ON_START", "0" if resume else "1")
        if memory_mib := int(env.get("CRAWL_MEMORY_LIMIT") or 0) // 2**20:
            env.setdefault("CRAWLEE_MEMORY_MBYTES", str(memory_mib))
        before = self._numbers()
        self._stale = {} if resume else before
        # Counters alone do not prove that a request queue was stored from which the crawl can
        # continue.
        unknown = before and not os.path.isdir(os.path.join(self._folder, "request_queues"))
        self._resumed = {"resumed": bool(before)} if resume and not unknown else {}

    def read(self) -> Json | None:
        """Return the counters, and all numbers as ``scrapystats``; ``None`` if this attempt has
        written none.
        """
        found = self._numbers()
        if "requestsFinished" not in found or found == self._stale:
            return None
        counters = {"pages": found["requestsFinished"], "errors": found.get("requestsFailed", 0)}
        return {**counters, **self._resumed, "scrapystats": found}

    def _numbers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            folder = SafeDirectory(self._folder, "key_value_stores", "default")
            for raw in filter(None, (folder.read(name, _READ_MAX) for name in _FILES)):
                for name, number in dict(_NUMBER.findall(raw)).items():
                    found[name.decode()] = found.get(name.decode(), 0) + int(number)
        except (OSError, NotOurs):
            return {}
        return found
