"""``crawlctl deploy`` and ``crawlctl package``: deployed code of crawlers, with its versions."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from crawler_lifecycle.cli.output import emit, emit_list, show_facts, show_list
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import By, Limit, Project, Reason
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.names import CRAWLER_NAME
from crawler_lifecycle.features.canaries.domain.canary import CanaryState, Judge
from crawler_lifecycle.runner.package import BadPackage, Package
from crawler_lifecycle.subjects import CANARY, PACKAGE, PACKAGE_VERSIONS, Document

from .adapters.eggs import repack
from .adapters.packing import pack

_SUFFIXES = (".egg", ".whl", ".zip")
_GIT_S = 10.0
_Package = Annotated[str, Parameter(help="the name of the package")]
_Canary = Annotated[int, Parameter(help="the canary's number")]
_Version = Annotated[str, Parameter(help="the name of the version")]


def deploy(
    source: Path = Path(),
    /,
    *,
    name: Annotated[str | None, Parameter(name="--as")] = None,
    version: str | None = None,
    force: bool = False,
    canary: float | None = None,
    canary_runs: int | None = None,
    judge: list[Judge] | None = None,
    project: Project = None,
    by: By = None,
) -> None:
    """Deploy the code of a project as a version of a package, and make it current.

    Caches, logs, names that begin with a dot, and other files that are not code are left out.

    Parameters
    ----------
    source
        the folder of the project, or an egg, a wheel or a zip; default: the working directory
    name
        the name of the package; default: the name of the folder
    version
        the name of the version; default: the git commit of the folder or, if files are not
        committed, the beginning of the digest of the contents
    force
        deploy a Scrapy project even if it cannot be imported
    canary
        the share of new runs that try the version before it becomes current, such as 0.1
    canary_runs
        the number of ended runs after which it is judged (default: 3)
    judge
        what the runs are judged by in addition to expect (default: all)
    """
    folder = source.resolve()
    package = name or folder.name.removesuffix(folder.suffix if folder.is_file() else "").lower()
    if not CRAWLER_NAME.fullmatch(package):
        raise WrongUsage(
            f"{package!r} cannot be the name of a package", "give one with --as, such as --as shop"
        )
    with tempfile.TemporaryFile() as file:
        commit = _packed(folder, file)
        digest = Package(file).digest().partition(":")[2]
        asked = version or (commit or digest)[:12]
        path = f"{_path(package)}/versions/{quote(asked, safe='')}"
        whose = {"project": project, "requested_by": by or user()}
        tried = {"canary": canary, "canary_runs": canary_runs, "judge": judge}
        params = {"commit": commit, "force": "true" if force else None, **tried, **whose}
        file.seek(0)
        with current().gateway() as gateway:
            found: Document = gateway.upload(path, file, **params)
            if not found["current"] and canary is None:
                found = _used(gateway, package, asked, by)
    _show(found)


def _packed(source: Path, file: IO[bytes]) -> str | None:
    """Write the zip of a folder or of an archive to ``file``. Return the commit, if it is known.

    Raises ``CommandFailed``.
    """
    try:
        if source.is_dir():
            pack(source, file)
            return _commit(source)
        if source.suffix not in _SUFFIXES or not zipfile.is_zipfile(source):
            kinds = ", ".join(_SUFFIXES)
            raise WrongUsage(
                f"{source} is neither a folder nor {kinds}", "give the project's folder"
            )
        with source.open("rb") as archive:
            repack(archive, file)
    except BadPackage as error:
        raise CommandFailed(Exit.USAGE, f"{source} cannot be deployed", str(error)) from None
    except OSError as error:
        raise CommandFailed(Exit.ERROR, f"{source} cannot be read", str(error)) from None
    return None


def _commit(folder: Path) -> str | None:
    """Return the commit of a folder without uncommitted changes."""
    if _git(folder, "status", "--porcelain", "--", ".") != "":
        return None
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; ``None`` if it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def list_packages(*, limit: Limit = 50) -> None:
    """List packages with their current versions."""
    empty = "no packages; next: crawlctl deploy --help"
    show_list("/v1/packages", PACKAGE.columns, key="package", empty=empty, limit=limit)


def list_versions(package: _Package, /) -> None:
    """List the versions of a package, newest first."""
    with current().gateway() as gateway:
        rows = gateway.get(_path(package))["versions"]
    emit_list("versions", rows, PACKAGE_VERSIONS, name="version", empty="")


def use(package: _Package, version: _Version, /, *, by: By = None) -> None:
    """Make a version current: runs that name no version use it from now on."""
    with current().gateway() as gateway:
        _show(_used(gateway, package, version, by))


def delete(package: _Package, version: str | None = None, /, *, force: bool = False) -> None:
    """Delete a version, or a package with all versions. Runs that use them keep their code.

    Parameters
    ----------
    version
        the name of the version; default: all versions
    force
        delete it even if a schedule, an open manager or an open graph names it
    """
    params = {"force": "true" if force else None}
    with current().gateway() as gateway:
        if version is not None:
            path = f"{_path(package)}/versions/{quote(version, safe='')}"
            _show(gateway.delete(path, **params))
            return
        found = gateway.delete(_path(package), **params)
    emit(found, names=[package], table=lambda: say(f"{package} is deleted."))


def list_canaries(
    *,
    package: str | None = None,
    crawler: str | None = None,
    state: CanaryState | None = None,
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List canaries, newest first: versions that only a share of the runs uses.

    Parameters
    ----------
    package
        only those of this package
    crawler
        only those of this crawler, which has versions of its own
    state
        only those in this state
    """
    empty = "no canaries; next: crawlctl deploy --canary 0.1"
    wanted = {"package": package, "crawler": crawler, "state": state, "project": project}
    show_list("/v1/canaries", CANARY.columns, key="canary_id", empty=empty, limit=limit, **wanted)


def accept(canary: _Canary, /, *, reason: Reason = None, by: By = None) -> None:
    """Make the new version of a canary current."""
    _end(canary, "accept", reason, by)


def reject(canary: _Canary, /, *, reason: Reason = None, by: By = None) -> None:
    """Keep the old version current, and give the new one to no further run."""
    _end(canary, "reject", reason, by)


def _end(canary: int, verb: str, reason: str | None, by: str | None) -> None:
    body = {"reason": reason, "requested_by": by or user()}
    with current().gateway() as gateway:
        found = gateway.post(f"/v1/canaries/{canary}/{verb}", body)
    emit(found, names=[canary], table=lambda: show_facts(CANARY.known(found)))


def _path(package: str) -> str:
    return f"/v1/packages/{quote(package, safe='')}"


def _used(gateway: Any, package: str, version: str, by: str | None) -> Document:
    body = {"version": version, "requested_by": by or user()}
    found: Document = gateway.post(f"{_path(package)}/use", body)
    return found


def _show(found: Document) -> None:
    emit(found, names=[found["version"]], table=lambda: show_facts(PACKAGE.known(found)))
    for text in (found["told"], found["note"]):
        if text:
            say(text)
