"""``manifest.json``, the last member of every archive: what is inside, what was left out, and why."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run_ref import RunRef

MANIFEST = "manifest.json"
_CHUNK = 256 * 1024


def check_owner(url: str, manifest: Mapping[str, object], found: str | None) -> None:
    """Raise ``NotDelivered`` when the archive that is there is of another run than the one that is to be written.

    ``found`` is the uid that it bears. A number comes again after a restore, and the key is made of it.
    """
    uid = manifest.get("run_uid")
    if uid != found:
        run = RunRef(int(str(manifest.get("run_id", 0))), str(uid))
        raise NotDelivered(run.foreign(f"the archive {url}", found) + "; move it away, then send this export again")


class ManifestFile:
    """Entries are kept in a temporary file: with a hundred thousand of them they would be the most of our memory."""

    def __init__(self, skipped_named_max: int) -> None:
        self._skipped_named_max = skipped_named_max
        self._file = tempfile.TemporaryFile(prefix="manifest-")  # noqa: SIM115 closed by __exit__
        self._entries = 0
        self._skipped: list[dict[str, str]] = []
        self._reasons: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self._file.tell()

    def add(self, entry: Mapping[str, object]) -> None:
        """Note a file that is in the archive."""
        self._file.write(b",\n  " if self._entries else b"\n  ")
        self._file.write(json.dumps(entry).encode())
        self._entries += 1

    def skip(self, path: str, reason: str) -> None:
        """Note something that was left out; by name as long as there are few."""
        self._reasons[reason] += 1
        if len(self._skipped) < self._skipped_named_max:
            self._skipped.append({"name": path, "reason": reason})

    def document(self, head: Mapping[str, object]) -> Iterator[bytes]:
        """The JSON document in pieces: ``head``, what was skipped (``skipped…``), then all ``files``."""
        skipped = {
            "skipped_count": self._reasons.total(),
            "skipped_reasons": dict(sorted(self._reasons.items())),
            "skipped": self._skipped,
        }
        text = json.dumps({**head, **skipped}, indent=1, default=str)
        yield text.removesuffix("\n}").encode() + b',\n "files": ['
        self._file.seek(0)
        while piece := self._file.read(_CHUNK):
            yield piece
        yield b"\n ]\n}\n" if self._entries else b"]\n}\n"
