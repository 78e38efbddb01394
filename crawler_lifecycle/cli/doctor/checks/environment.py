"""Checks of this process: its environment variables, the versions of its packages, and the names in
its quotas.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from packaging.requirements import Requirement

from crawler_lifecycle.cli.doctor.report import Context, Line, bad, of_error, ok, warn
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.gateway.access.tokens import TokenFileError, read
from crawler_lifecycle.settings import PREFIX, unread_variables
from crawler_lifecycle.store.diagnosis import diagnose, stored_pools

PACKAGE = "crawler-lifecycle"


def check_environment(context: Context) -> Sequence[Line]:
    """Report variables with our prefix that no setting reads.

    Such variables are misspelt or belong to another version.
    """
    environment = context.sources.environment
    own = [name for name in environment if name.upper().startswith(PREFIX)]
    unread = unread_variables(environment)
    lines = [
        bad("environment", f"{name} is set, but no setting reads it", fix) for name, fix in unread
    ]
    number = (
        f"{len(own)} {PREFIX}* variables are set, all are settings"
        if own
        else f"no {PREFIX}* variable is set"
    )
    return lines or [ok("environment", number)]


def check_versions(context: Context) -> Sequence[Line]:
    """Check the versions of all packages that our package requires."""
    python = f"Python {platform.python_version()} at {sys.executable}"
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        fix = "install it with pip (make env in a checkout), so that its requirements are known"
        return [warn("versions", f"{python}; {PACKAGE} itself is not installed", fix)]
    fine = (
        f"{python}, {PACKAGE} {metadata.version(PACKAGE)}, all its packages have suitable versions"
    )
    return requirement_lines(wanted) or [ok("versions", fine)]


def requirement_lines(wanted: Sequence[str]) -> list[Line]:
    """Return a finding for each package that is missing or does not meet a requirement such as
    ``boto3<2,>=1.40``.

    A resolver that ignores these bounds can choose boto3 0.0.3, and botocore does not work with
    python-dateutil 3.
    """
    lines = []
    for needed in map(Requirement, wanted):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            fix = f"pip install '{needed}', or install from locks/all.lock"
            lines.append(bad("versions", f"{needed.name} is not installed", fix))
            continue
        if not needed.specifier.contains(version, prereleases=True):
            fix = "install from locks/all.lock (make env), which has suitable versions"
            text = f"{needed.name} {version} is installed, but {needed.specifier} is needed"
            lines.append(bad("versions", text, fix))
    return lines


def check_quotas(context: Context) -> Sequence[Line]:
    """Check that each quota names an existing token or pool.

    Tokens are checked only if their file can be read, and pools only if the database can.
    """
    settings = context.known
    known: dict[str, set[str]] = {}
    with suppress(LifecycleError):  # the check of the database reports it
        if settings.quotas and diagnose(settings.database.url).exists:
            stored = stored_pools(settings.database.url)
            known["pool"] = {DEFAULT, *settings.pools, *stored}
    try:
        if (file := settings.gateway.callers_file) is not None:
            known["token"] = {entry.caller.name for entry in read(file)}
    except TokenFileError as error:
        return [of_error("quotas", error)]
    # The names of people who log in through an issuer cannot be checked here.
    holders = [key.partition(":") for key in settings.quotas if not key.startswith("token:oidc:")]
    wrong = [
        (kind, name) for kind, _, name in holders if name not in {"*", *known.get(kind, {name})}
    ]
    fix = "correct the name in LIFECYCLE_QUOTAS, or remove the entry"
    return [
        warn("quotas", f"a quota is for {kind} {name}, and there is no such {kind}", fix)
        for kind, name in wrong
    ]
