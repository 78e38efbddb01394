"""The versions of packages for the starts of runs."""

from __future__ import annotations

from dataclasses import dataclass

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.ports.entries import Entries, number_of

from .canaries import CanaryStore
from .packages import PackageStore

#: The number of versions that an error names.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PackageVersions:
    """``domain.code.CodeVersions`` over the database."""

    packages: PackageStore
    canaries: CanaryStore
    entries: Entries

    def find(self, package: str, version: str | None) -> Code:
        """Return the code of a version; see ``CodeVersions``."""
        found = self.packages.find_version(package, version)
        if found is not None:
            return Code(found.digest, found.version, found.commit)
        newest = [known.version for known in self.packages.versions(package, _SHOWN)]
        if not newest:
            raise InvalidRequest(
                f"package: {package!r} has no version; deploy one first (crawlctl deploy)"
            )
        fix = f"package {package!r} has {', '.join(newest)}; leave it out for the current one"
        raise refusal("version", version, fix)

    def open_canary(self, name: str, *, of_entry: bool = False) -> int | None:
        """See ``CodeVersions``."""
        return self.canaries.open_canary(name, of_entry=of_entry)

    def check_entry(self, name: str, version: str) -> None:
        """See ``CodeVersions``."""
        if self.entries.entry_version(name, number_of(version)) is None:
            newest = [str(known.number) for known in self.entries.entry_history(name, limit=_SHOWN)]
            fix = f"crawler {name!r} has {', '.join(newest)}; leave it out for the current one"
            raise refusal("version", version, fix)
