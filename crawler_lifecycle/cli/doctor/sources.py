"""All settings of this process, and the source of each."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from crawler_lifecycle import dev_json, redaction
from crawler_lifecycle.cli.admin.services import settings_beside
from crawler_lifecycle.cli.machine import living
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, stack_of_dev
from crawler_lifecycle.settings import PREFIX, Settings, variables

DEFAULT = "default"
ENVIRONMENT = "environment"

#: Variables of other programs that determine which systems our processes call. The last line
#: contains secrets.
_OTHERS = (
    "TEMPORAL_ADDRESS",
    "TEMPORAL_NAMESPACE",
    "TEMPORAL_PROFILE",
    "TEMPORAL_CONFIG_FILE",
    "TEMPORAL_TLS",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "TEMPORAL_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of settings: the environment, the file that ``LIFECYCLE_CONFIG`` names, and a running
    ``crawlctl dev``.
    """

    environment: Mapping[str, str]
    file: Path | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)
    dev_json: Path | None = None
    of_dev: frozenset[str] = frozenset()
    alone: bool = False
    """True if only the address of a gateway is configured. Then a stack in this folder would be a
    different system.
    """

    def of(self, variable: str) -> str:
        """Return the source of a setting by the name of its variable."""
        if variable in self.of_dev:
            return str(self.dev_json)
        if any(name.upper() == variable and value for name, value in self.environment.items()):
            return ENVIRONMENT
        found: Any = self.tree
        for part in variable.removeprefix(PREFIX).lower().split("__"):
            found = found.get(part) if isinstance(found, Mapping) else None
        return DEFAULT if found is None else str(self.file)


def collect(state_dir: Path | None) -> Sources:
    """Read the sources.

    If no setting names a system, use the ``crawlctl dev`` of this folder or a folder above it.

    That stack's addresses are added to the environment of this process. Raises ``CommandFailed`` if
    ``state_dir`` is given but contains no stack.
    """
    environment = dict(os.environ)
    file = Path(environment["LIFECYCLE_CONFIG"]) if environment.get("LIFECYCLE_CONFIG") else None
    tree: dict[str, Any] = {}
    if file is not None:
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            tree = {}  # ``Settings.load`` reports the error
    stack = _stack(state_dir, environment)
    named = current().gateway_url or environment.get("LIFECYCLE_GATEWAY__URL")
    if state_dir is None and named and not dev_json.is_told(environment):
        known = stack.known.get("gateway") if stack is not None else None
        if str(known).rstrip("/") != named.rstrip("/"):
            return Sources(environment, alone=True)
    if stack is None:
        return Sources(environment, file, tree)
    given = settings_beside(stack)
    if state_dir is None:
        given = {
            name: value
            for name, value in given.items()
            if _of_temporal(name) or not environment.get(name)
        }
    for name in filter(_of_temporal, environment):
        del os.environ[name]  # a profile or key for another server
    os.environ.update(given)
    return Sources(environment, file, tree, stack.file, frozenset(given))


def _of_temporal(name: str) -> bool:
    return name.startswith("TEMPORAL_")


def _stack(state_dir: Path | None, environment: Mapping[str, str]) -> dev_json.Stack | None:
    if state_dir is None:
        # Temporal's own programs use the same variables, so these variables alone do not show that
        # an installation of ours is configured.
        ours = {name: value for name, value in environment.items() if not _of_temporal(name)}
        found = None if dev_json.is_told(ours) else stack_of_dev()
        if (
            found is not None
            and dev_json.is_told(environment)
            and "temporal" not in living(found.known)
        ):
            return None
        return found
    file = state_dir / dev_json.NAME
    try:
        found = dev_json.read(file)
    except dev_json.SetAside as aside:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, str(aside)) from None
    if found is None:
        raise CommandFailed(
            Exit.NOT_FOUND,
            f"no stack was ever started in {state_dir}",
            f"no {file}",
            f"start a stack: crawlctl dev --state-dir {state_dir}",
        )
    return found


# --- the current values ---------------------------------------------------------------------------


def in_force(
    settings: Settings, sources: Sources, redactor: redaction.Redactor
) -> list[dict[str, str]]:
    """Return name, value and source of every setting and of other relevant variables, with secrets
    masked.
    """
    found = []
    for variable in variables():
        value: Any = settings
        for part in variable.removeprefix(PREFIX).lower().split("__"):
            value = getattr(value, part)
        found.append(
            {
                "name": variable,
                "value": _shown(variable, value, redactor),
                "source": sources.of(variable),
            }
        )
    for variable in _OTHERS:
        text = os.environ.get(variable)
        if text:
            source = str(sources.dev_json) if variable in sources.of_dev else ENVIRONMENT
            found.append(
                {"name": variable, "value": _shown(variable, text, redactor), "source": source}
            )
    return found


def _shown(variable: str, value: object, redactor: redaction.Redactor) -> str:
    if value is None:
        return "-"
    if isinstance(value, SecretStr) or redaction.is_secret_name(variable):
        return "(set, not shown)" if str(value) else "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps([redactor.text(str(part)) for part in value], ensure_ascii=False)
    return redactor.text(str(value)) or '""'
