"""Routes of packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.features.canaries.gateway.fields import CanaryFields
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Choice, Id, Paging
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import Person, SignedBody
from crawler_lifecycle.gateway.runs.routes import no_task
from crawler_lifecycle.web.problems import JsonBody, Problem

from ..domain.version import PackageVersion
from ..store.packages import NewVersion

_Name = Annotated[str, Path(max_length=63)]
_Version = Annotated[str, Path(max_length=64)]
_BLOCK = 2**18


class PutVersion(CanaryFields, Choice):
    """Parameters of ``PUT /v1/packages/{package}/versions/{version}``."""

    commit: Annotated[str | None, Field(pattern="^[0-9a-f]{6,64}$")] = None
    project: str | None = None
    """Only a caller with access to all projects may name a project other than its own."""
    requested_by: Person | None = None
    force: bool = False
    """Whether to deploy a Scrapy project that cannot be imported."""


class UseVersion(SignedBody):
    """Body of ``POST /v1/packages/{package}/use``."""

    version: Annotated[str, Field(max_length=64)]


_Use = Annotated[UseVersion, Depends(JsonBody(UseVersion))]


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedVersion(PackageVersion):
    """A version after a command."""

    told: str
    """A sentence about what changed."""


class DeletedPackage(BaseModel):
    """A package that was deleted."""

    package: str
    versions: int


class PackagePage(BaseModel):
    """A page of packages with their current versions, by name."""

    packages: list[PackageVersion]
    next_page_token: str | None


class VersionList(BaseModel):
    """All versions of a package, newest first."""

    versions: list[PackageVersion]


def add_packages(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of packages."""
    packages = gateway.store.packages
    deployments = gateway.deployments

    @app.get("/v1/packages", **documents(PackagePage))
    def list_packages(filters: Annotated[Paging, Query()], request: Request) -> Response:
        """The packages with their current versions, by name."""
        rows, token = filters.read_by_offset("package", packages.list_packages)
        return conditional(request, PackagePage(packages=rows, next_page_token=token))

    @app.get("/v1/packages/{package}")
    def list_package_versions(package: _Name) -> VersionList:
        """All versions of a package, newest first."""
        found = packages.versions(package)
        if not found:
            raise _no_package(package)
        return VersionList(versions=found)

    @app.get("/v1/packages/{package}/versions/{version}")
    def get_package_version(package: _Name, version: _Version) -> PackageVersion:
        """One version of a package, with its spiders."""
        found = packages.find_version(package, version)
        if found is None:
            raise _no_version(package, version)
        return found

    @app.put("/v1/packages/{package}/versions/{version}", status_code=201)
    async def put_package_version(
        package: _Name,
        version: _Version,
        asked: Annotated[PutVersion, Query()],
        request: Request,
        response: Response,
    ) -> ChangedVersion:
        """Deploy a version: the body is a zip with the files of a project.

        Runs that name no version use it from now on, or a share of them while it is a canary. A
        canary ends an earlier one. A repeat with the same contents changes
        nothing and has the status 200; other contents need another version.
        """
        by = signed(asked).requested_by
        canary = asked.settings()
        new = NewVersion(
            package, version, commit=asked.commit, by=by, project=asked.project, canary=canary
        )
        received = await deployments.uploads.receive(request.stream())
        with received.file:
            found, told, fresh = await deployments.deploy(new, received, force=asked.force)
        if not fresh:
            response.status_code = 200
        return _told(found, told, fresh)

    @app.post("/v1/packages/{package}/use")
    def use_package_version(package: _Name, body: _Use) -> ChangedVersion:
        """Make a version current: runs that name no version use it from now on."""
        if packages.find_version(package, body.version) is None:
            raise _no_version(package, body.version)
        change = packages.use_version(package, body.version, signed(body).requested_by)
        told = "It is now current." if change.fresh else "It was already current."
        return _told(change.version, told, change.fresh)

    @app.delete("/v1/packages/{package}/versions/{version}")
    def delete_package_version(
        package: _Name, version: _Version, force: bool = False
    ) -> ChangedVersion:
        """Delete a version. Runs that use it keep their code.

        One that a schedule, an open manager or an open graph names is deleted only with `force`.
        """
        found = packages.delete_version(package, version, caller_name(), force=force)
        if found is None:
            raise _no_version(package, version)
        return _told(found, "It is deleted.", True)

    @app.delete("/v1/packages/{package}")
    def delete_package(package: _Name, force: bool = False) -> DeletedPackage:
        """Delete a package with all its versions. Runs that use them keep their code.

        If a schedule, an open manager or an open graph names one, it is deleted only with `force`.
        """
        versions = packages.delete_package(package, caller_name(), force=force)
        if not versions:
            raise _no_package(package)
        present_call().about.append(("package", package, "deleted", True))
        return DeletedPackage(package=package, versions=versions)


def add_downloads(app: FastAPI, gateway: Gateway) -> None:
    """Add the route by which tasks fetch their code."""
    tasks = gateway.store.tasks
    runs = gateway.store.runs
    code = gateway.code

    @app.get(
        "/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/code",
        response_class=StreamingResponse,
    )
    def download_code(
        run_id: Id,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
    ) -> StreamingResponse:
        """The zip with the code of a task, for the token in `CRAWL_CODE_TOKEN`."""
        if not tasks.recorded_tasks([(run_id, index, attempt)]):
            raise no_task(run_id, index, attempt)
        digest = runs.request_of(run_id).code
        if digest is None:
            detail = f"run {run_id} executes no deployed package"
            raise Problem(404, "package_not_found", detail, run_id=run_id)
        return StreamingResponse(_blocks(code.open(digest)), media_type="application/zip")


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while block := file.read(_BLOCK):
            yield block


def _no_package(name: str) -> Problem:
    detail = f"there is no package {name!r}; crawlctl deploy creates it"
    return Problem(404, "package_not_found", detail)


def _no_version(name: str, version: str) -> Problem:
    detail = (
        f"package {name!r} has no version {version!r}; GET /v1/packages/{name} lists its versions"
    )
    return Problem(404, "package_not_found", detail)


def _told(row: PackageVersion, told: str, fresh: bool) -> ChangedVersion:
    if fresh:
        # The access log shows the version, which a path need not contain.
        present_call().about.append(("package", row.package, f"version {row.version}"[:60], True))
    return ChangedVersion(**dataclasses.asdict(row), told=told)
