"""Every setting in force and where it came from, and variables that look like settings and are none."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from crawler_lifecycle.cli import layout
from crawler_lifecycle.cli.doctor.report import Line
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import DEV_JSON
from crawler_lifecycle.observability import redaction
from crawler_lifecycle.settings import PREFIX, Settings, unread_variables, variables

DEFAULT, ENVIRONMENT = "default", "environment"

#: What a running `crawlctl dev` tells in its dev.json -> the variable that it gives to its parts.
_OF_DEV = {
    "database": "LIFECYCLE_DATABASE__URL",
    "scheduler": "LIFECYCLE_SCHEDULER__URL",
    "gateway": "LIFECYCLE_GATEWAY__URL",
    "archive": "LIFECYCLE_ARCHIVE__URL",
    "events": "LIFECYCLE_EVENTS__URL",
    "temporal": "TEMPORAL_ADDRESS",
    "namespace": "TEMPORAL_NAMESPACE",
    "cluster": "LIFECYCLE_CLUSTER__KIND",
    "kubeconfig": "LIFECYCLE_CLUSTER__KUBECONFIG",
    "context": "LIFECYCLE_CLUSTER__CONTEXT",
    "cluster_namespace": "LIFECYCLE_CLUSTER__NAMESPACE",
    "image": "LIFECYCLE_CLUSTER__IMAGE",
}
#: Variables of others that decide what our processes speak with; the second half are secrets.
_OTHERS = (
    *("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "TEMPORAL_TLS"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    *("TEMPORAL_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force. ``value`` is a text in which nothing is secret."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings come from: the environment, the file of ``LIFECYCLE_CONFIG``, a running ``crawlctl dev``."""

    environment: Mapping[str, str]
    file: Path | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)
    dev_json: Path | None = None
    of_dev: frozenset[str] = frozenset()

    def of(self, variable: str) -> str:
        """The source of a setting, by its variable's name."""
        if variable in self.of_dev:
            return str(self.dev_json)
        if any(name.upper() == variable and value for name, value in self.environment.items()):
            return ENVIRONMENT
        found: Any = self.tree
        for part in variable.removeprefix(PREFIX).lower().split("__"):
            found = found.get(part) if isinstance(found, Mapping) else None
        return DEFAULT if found is None else str(self.file)


def collect(state_dir: Path | None) -> Sources:
    """Read the sources. Where nothing else names our parts, a ``crawlctl dev`` above this folder does.

    Its addresses are put into this process's environment, as it puts them into its parts'. Raises ``CommandFailed``
    when ``state_dir`` was given and no stack is there.
    """
    environment = dict(os.environ)
    file = Path(environment["LIFECYCLE_CONFIG"]) if environment.get("LIFECYCLE_CONFIG") else None
    tree: dict[str, Any] = {}
    if file is not None:
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            tree = {}  # Settings.load says what is wrong with it
    dev_json = _dev_json(state_dir, environment)
    if dev_json is None:
        return Sources(environment, file, tree)
    known = json.loads(dev_json.read_text(encoding="utf-8"))
    given = {variable: str(known[name]) for name, variable in _OF_DEV.items() if known.get(name)}
    catalogue = dev_json.parent / "crawlers.yaml"
    if catalogue.is_file() and not Path("crawlers.yaml").is_file():
        given["LIFECYCLE_CRAWLERS"] = str(catalogue)
    if state_dir is None:
        given = {variable: value for variable, value in given.items() if not environment.get(variable)}
    os.environ.update(given)
    return Sources(environment, file, tree, dev_json, frozenset(given))


def _dev_json(state_dir: Path | None, environment: Mapping[str, str]) -> Path | None:
    if state_dir is not None:
        found = state_dir / "dev.json"
        if not _is_dev_json(found):
            cure = f"crawlctl dev --state-dir {state_dir} starts one"
            raise CommandFailed(Exit.NOT_FOUND, f"no stack was ever started in {state_dir}", f"no {found}", cure)
        return found
    own = [name for name in (*layout.OWN, "TEMPORAL_ADDRESS") if name != "LIFECYCLE_GATEWAY__URL"]
    if any(environment.get(name) for name in own):
        return None
    here = Path.cwd()
    return next((one / DEV_JSON for one in (here, *here.parents) if _is_dev_json(one / DEV_JSON)), None)


def _is_dev_json(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


# --- what is in force ----------------------------------------------------------------------------------------------


def in_force(settings: Settings, sources: Sources, redactor: redaction.Redactor) -> list[Setting]:
    """Every setting, then the variables of others that matter, with their sources."""
    found = []
    for variable in variables():
        value: Any = settings
        for part in variable.removeprefix(PREFIX).lower().split("__"):
            value = getattr(value, part)
        found.append(Setting(variable, _shown(variable, value, redactor), sources.of(variable)))
    for variable in _OTHERS:
        text = os.environ.get(variable)
        if text:
            source = str(sources.dev_json) if variable in sources.of_dev else ENVIRONMENT
            found.append(Setting(variable, _shown(variable, text, redactor), source))
    return found


def _shown(variable: str, value: object, redactor: redaction.Redactor) -> str:
    if value is None:
        return "-"
    if isinstance(value, SecretStr) or redaction.is_secret_name(variable):
        return "(set, not shown)" if str(value) else "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(redactor.text(str(one)) for one in value) or "-"
    return redactor.text(str(value)) or "-"


# --- what looks like a setting and is none -------------------------------------------------------------------------


def check_variables(sources: Sources) -> list[Line]:
    """Variables with our prefix that no setting reads: they were misspelt, or belong to another version."""
    own = [name for name in sources.environment if name.upper().startswith(PREFIX)]
    lines = [
        Line("environment", "bad", f"{name} is set, but no setting reads it", cure)
        for name, cure in unread_variables(sources.environment)
    ]
    if not lines:
        number = f"{len(own)} {PREFIX}* variables are set" if own else f"no {PREFIX}* variable is set"
        lines.append(Line("environment", "ok", f"{number}, each of them a setting" if own else number))
    return lines
