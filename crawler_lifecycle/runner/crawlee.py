"""Crawlee, for Node and for Python: the folder of its storage, the memory that it may use, and its
counters.
"""

from __future__ import annotations

import os
import re

from .contract import Json
from .safe_directory import NotOurs, SafeDirectory

#: Each crawler of one process has a file of its own: here the first four of Node, and those of
#: Python.
_FILES = [
    name
    for n in range(4)
    for name in (f"SDK_CRAWLER_STATISTICS_{n}.json", f"__CRAWLER_STATISTICS_{n}")
]
#: Numbers stand first in a file, and the list of all errors last, so the rest is not read. Node
#: writes it in place: it may be half-written, so a number counts only with what follows it. Those
#: per minute change without any progress.
_READ_MAX = 64 * 1024
_NUMBER = re.compile(rb'"(requests?(?!\w*PerMinute)\w{1,40})"\s*:\s*(\d{1,15})(?:\.\d*)?\s*[,}]')
#: By default Crawlee writes its statistics once a minute.
_PERSIST_MS = "2000"


class Crawlee:
    """The storage of a crawl of Crawlee, in the state folder, which all attempts share."""

    def __init__(self, env: dict[str, str], state_dir: str, *, resume: bool) -> None:
        """Add Crawlee's variables, which other programs do not know. Those of the catalogue win."""
        self._folder = env.setdefault("CRAWLEE_STORAGE_DIR", os.path.join(state_dir, "crawlee"))
        env.setdefault("CRAWLEE_PERSIST_STATE_INTERVAL_MILLIS", _PERSIST_MS)
        env.setdefault("CRAWLEE_PURGE_ON_START", "0" if resume else "1")
        if memory_mib := int(env.get("CRAWL_MEMORY_LIMIT") or 0) // 2**20:
            env.setdefault("CRAWLEE_MEMORY_MBYTES", str(memory_mib))
        before = self._numbers()
        self._stale = {} if resume else before
        # Counters alone do not prove that a queue was stored, from which the crawl continues.
        unknown = before and not os.path.isdir(os.path.join(self._folder, "request_queues"))
        self._resumed = {"resumed": bool(before)} if resume and not unknown else {}

    def read(self) -> Json | None:
        """Return the counters, and all numbers as ``scrapystats``; ``None`` without any of this
        attempt.
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
