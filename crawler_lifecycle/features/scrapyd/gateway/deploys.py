"""The calls that deploy and delete versions of projects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from crawler_lifecycle.features.packages.gateway.deploying import Deployments
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.gateway.access.operations import caller_name
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.web.problems import Problem

from .eggs import FORM_MAX, EggForm
from .forms import Form, refused, shown
from .jobs import Answer
from .projects import Projects, package_of, stored_version


@dataclass(frozen=True)
class Deploys:
    """Answers each call, without ``status`` and ``node_name``.

    Raises ``Problem`` or an error of the domain.
    """

    projects: Projects
    deployments: Deployments

    async def addversion(self, request: Request) -> Answer:
        """Deploy the egg in the body, and make its version current."""
        sent = EggForm(request.headers.get("content-type", ""), request.scope["query_string"])
        received = await self.deployments.uploads.receive(request.stream(), FORM_MAX, sent.convert)
        package = package_of(sent.project)
        new = NewVersion(package, stored_version(sent.version), by=caller_name())
        with received.file:
            found, _, fresh = await self.deployments.deploy(new, received)
        if fresh:
            _tell(package, f"{found.version}: deployed")
        spiders = len(found.spiders or ())
        return {"project": sent.project, "version": sent.version, "spiders": spiders}

    async def delversion(self, form: Form) -> Answer:
        """Delete a version.

        If it is the current one, another one becomes current in the same transaction.
        """
        project = form.need("project")
        version = form.need("version")
        package = package_of(project)
        found = await self.projects.find(project, version)
        if found is None:
            raise _no_package(project)
        delete = partial(self.projects.packages.delete_version, fall_back=True)
        await run_in_threadpool(delete, package, found.version, caller_name())
        _tell(package, f"{found.version}: deleted")
        return {}

    async def delproject(self, form: Form) -> Answer:
        """Delete a project with all its versions."""
        project = form.need("project")
        package = package_of(project)
        if await self.projects.find(project, None) is None:
            raise _no_package(project)
        await run_in_threadpool(self.projects.packages.delete_package, package, caller_name())
        _tell(package, "deleted")
        return {}


def _no_package(project: str) -> Problem:
    return refused(
        f"project {shown(project)} has the crawlers of the catalogue, which is changed in its file "
        "or with crawlctl crawler"
    )


def _tell(package: str, what: str) -> None:
    present_call().about.append(("package", package, what, True))
