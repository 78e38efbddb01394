"""Layout of the stack: folders, ports, addresses, the parts and their environment."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.machine import LOOPBACK
from crawler_lifecycle.dev_json import LOOPBACK_WEBHOOKS, VARIABLES, identity
from crawler_lifecycle.settings import sqlite_url

from . import processes, temporal_server
from .supervise import Part

PORTS = {
    "temporal": 7233,
    "temporal_ui": 8233,
    "gateway": 8500,
    "scheduler": 8600,
    "site": 8400,
    "worker": 8700,
    "metrics": 9464,
}

#: Ports that are opened only on request, because they have no access control. The web UI can even
#: change workflows.
ON_DEMAND = frozenset({"temporal_ui", "metrics"})

#: The folder in which the image contains the example crawlers.
IMAGE_PROJECT = "/opt/crawlers"
#: The name of the generic crawler. The catalogue contains this crawler if a folder of pages is
#: served.
SITE_CRAWLER = "site"

#: The files that ``crawlctl init`` creates. The catalogue among them is used if there is no other
#: catalogue.
TEMPLATE = Path(__file__).resolve().parents[2] / "template"

#: Settings that the stack chooses itself, because it runs on this machine with files in its state
#: directory.
OWN = (
    "LIFECYCLE_CONFIG",
    "LIFECYCLE_DATABASE__URL",
    "LIFECYCLE_CLUSTER__KIND",
    "LIFECYCLE_CLUSTER__STATE_DIR",
    *(f"LIFECYCLE_SCHEDULER__{name}" for name in ("URL", "HOST", "PORT")),
    *(
        f"LIFECYCLE_GATEWAY__{name}"
        for name in ("URL", "HOST", "PORT", "AUTH_DISABLED", "CALLERS_FILE", "TASK_KEY")
    ),
    *(
        f"LIFECYCLE_WORKER__{name}"
        for name in ("HEALTH_HOST", "HEALTH_PORT", "METRICS_HOST", "METRICS_PORT")
    ),
    # A versioned worker gets no work until its version is made current.
    "LIFECYCLE_WORKER__BUILD_ID",
    "LIFECYCLE_WORKER__DEPLOYMENT",
    VARIABLES["stack"],
)
#: Settings that the stack reads from its environment, and passes to its parts in its own form.
TAKEN = (
    "LIFECYCLE_ARCHIVE__URL",
    "LIFECYCLE_EVENTS__URL",
    "LIFECYCLE_CATALOGUE",
    "LIFECYCLE_EXTRA_CATALOGUE",
)


def examples_dir() -> Path | None:
    """Return the examples folder of a source checkout; ``None`` if only the package is
    installed.
    """
    folder = Path(__file__).resolve().parents[3] / "examples"
    return folder if (folder / "site" / "__main__.py").is_file() else None


#: The setting that lists the modules with users' managers and functions.
MODULES = "LIFECYCLE_USER_CODE__MODULES"


def modules_with_user_code(folder: Path) -> list[str]:
    """Return the modules with user code: all modules in this folder (``*``), and the examples in a
    source checkout.
    """
    examples = examples_dir()
    ours = examples is not None and examples.parent == folder.resolve()
    return ["*", *(f"examples.{name}" for name in ("graphs", "managers") if ours)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders, ports, addresses and parts of one stack."""

    state_dir: Path
    ports: Mapping[str, int] = field(default_factory=dict)
    """The port of every part, which the stack chooses when it starts."""
    services: int = 0
    """Number of services on the demonstration site; 0 means all."""
    database: str | None = None
    site: Path | None = None
    """A folder of pages to serve instead of the demonstration site. ``site.check`` has checked
    it.
    """
    archive: str | None = None
    """The URL of the archive; ``None`` means a folder in the state directory."""
    events: str | None = None
    """The URL for events; ``None`` means a file in the state directory."""
    kubernetes: ClusterAccess | None = None
    """The Kubernetes cluster for crawls; ``None`` means that crawls are processes on this
    machine.
    """
    crawlers: Path | None = None
    """The catalogue; ``None`` means the catalogue that the environment names, the one in this
    folder, or the one of the examples.
    """
    only_free_ports: bool = False
    """If true, the default ports are avoided, even if they are free."""
    recreate: bool = False
    """If true, the stack starts from scratch, and the files that another build left in the state
    directory are moved aside.
    """
    demanded: Collection[str] = ()
    """The names of those ports in ``ON_DEMAND`` that are opened."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_dir", self.state_dir.absolute())

    def url(self, name: str) -> str:
        """Return the HTTP address of a part."""
        return f"http://{self.host(name)}:{self.ports[name]}"

    def host(self, name: str) -> str:
        """Return the address on which a part listens, which is loopback except for the site, which
        pods must reach.
        """
        return (
            self.kubernetes.address if self.kubernetes is not None and name == "site" else LOOPBACK
        )

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def cluster_dir(self) -> Path:
        """The folder of local tasks."""
        return self.state_dir / "cluster"

    @property
    def temporal_file(self) -> Path:
        return self.state_dir / "temporal.db"

    @property
    def database_file(self) -> Path:
        """The file of the embedded database."""
        return self.state_dir / "lifecycle.db"

    @property
    def has_site(self) -> bool:
        return self.site is not None or examples_dir() is not None

    @property
    def identity(self) -> str:
        """The identity of the stack, with a random id that is kept in its state directory."""
        return identity(kept_key(self.state_dir / "stack.id"), self.state_dir)

    def addresses(self) -> dict[str, str | None]:
        """Return the addresses for ``dev.json``, in the format of the settings."""
        return {
            "temporal": f"{LOOPBACK}:{self.ports['temporal']}",
            "namespace": temporal_server.NAMESPACE,
            "temporal_ui": self.url("temporal_ui") if "temporal_ui" in self.ports else None,
            "gateway": self.url("gateway"),
            "scheduler": self.url("scheduler"),
            "worker": self.url("worker"),
            "metrics": self.url("metrics") + "/metrics" if "metrics" in self.ports else None,
            "site": self.url("site") if self.has_site else None,
            "database": self.database or sqlite_url(self.state_dir / "lifecycle.db"),
            "archive": self.archive or (self.state_dir / "archive").as_uri(),
            "events": self.events or (self.state_dir / "events.jsonl").as_uri(),
            **self._cluster_addresses(),
        }

    def _cluster_addresses(self) -> dict[str, str | None]:
        """Return the cluster on which crawls execute. Options of ``crawlctl dev`` override
        settings.
        """
        if self.kubernetes is None:
            return {"cluster": "local"}
        of = self.kubernetes.settings()
        kubeconfig = None if of.kubeconfig is None else str(of.kubeconfig.absolute())
        known = {"kubeconfig": kubeconfig, "context": of.context, "cluster_namespace": of.namespace}
        return {"cluster": "kubernetes", **known, "image": of.image}

    def environment(self, crawlers: Path, extra_catalogue: Path | None = None) -> dict[str, str]:
        """Return the environment for the parts: our own environment, excluding variables that name
        a different system.
        """
        ours = {*OWN, *TAKEN}
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("TEMPORAL_") and k.upper() not in ours
        }
        known = self.addresses()
        env |= {
            "TEMPORAL_ADDRESS": str(known["temporal"]),
            "TEMPORAL_NAMESPACE": temporal_server.NAMESPACE,
            # This empty file replaces the profile in the home directory, which could add TLS or a
            # key.
            "TEMPORAL_CONFIG_FILE": str(self.state_dir / "temporal.toml"),
            "LIFECYCLE_DATABASE__URL": str(known["database"]),
            "LIFECYCLE_CLUSTER__KIND": "local",
            "LIFECYCLE_CLUSTER__STATE_DIR": str(self.cluster_dir),
            "LIFECYCLE_SCHEDULER__URL": str(known["scheduler"]),
            "LIFECYCLE_SCHEDULER__HOST": LOOPBACK,
            "LIFECYCLE_SCHEDULER__PORT": str(self.ports["scheduler"]),
            "LIFECYCLE_GATEWAY__URL": str(known["gateway"]),
            "LIFECYCLE_GATEWAY__HOST": LOOPBACK,
            "LIFECYCLE_GATEWAY__PORT": str(self.ports["gateway"]),
            "LIFECYCLE_GATEWAY__AUTH_DISABLED": "true",
            "LIFECYCLE_GATEWAY__TASK_KEY": kept_key(self.state_dir / "task.key"),
            "LIFECYCLE_WORKER__HEALTH_HOST": LOOPBACK,
            "LIFECYCLE_WORKER__HEALTH_PORT": str(self.ports["worker"]),
            "LIFECYCLE_ARCHIVE__URL": str(known["archive"]),
            "LIFECYCLE_EVENTS__URL": str(known["events"]),
            # Crawlers that call `python` and `scrapy` need the programs in this virtual
            # environment.
            "PATH": os.pathsep.join(
                (str(Path(sys.executable).parent), env.get("PATH", os.defpath))
            ),
            "PYTHONUNBUFFERED": "1",
            "LIFECYCLE_CATALOGUE": str(crawlers),
            VARIABLES["stack"]: self.identity,
        }
        env.setdefault(LOOPBACK_WEBHOOKS, "true")
        env.setdefault("LIFECYCLE_CODE__URL", (self.state_dir / "code").as_uri())
        env.setdefault(MODULES, json.dumps(modules_with_user_code(Path.cwd())))
        if "temporal_ui" in self.ports:
            place = f"{known['temporal_ui']}/namespaces/{temporal_server.NAMESPACE}"
            env.setdefault("LIFECYCLE_GATEWAY__TEMPORAL_UI", place)
        if "metrics" in self.ports:
            env |= {
                "LIFECYCLE_WORKER__METRICS_HOST": LOOPBACK,
                "LIFECYCLE_WORKER__METRICS_PORT": str(self.ports["metrics"]),
            }
        env |= _without_proxy(env)
        if self.kubernetes is not None:
            env |= self.kubernetes.environment()
            # Without the key, pods get no token, because they cannot reach a gateway on our
            # loopback address.
            del env["LIFECYCLE_GATEWAY__TASK_KEY"]
        if extra_catalogue is not None:
            env["LIFECYCLE_EXTRA_CATALOGUE"] = str(extra_catalogue)
        return env

    def parts(self, env: Mapping[str, str]) -> dict[str, Part]:
        """Return all parts by name.

        Before it starts them, the stack prepares Temporal's database file and migrates ours.
        """
        crawlctl = (sys.executable, "-m", "crawler_lifecycle.cli")
        # The path is relative, because the server decodes it: the server would mistake a folder
        # a%25b for a%b.
        file = Path(self.temporal_file.name)
        temporal = temporal_server.command(
            file, self.ports["temporal"], self.ports.get("temporal_ui")
        )
        parts = [
            Part(
                "temporal",
                temporal,
                temporal_server.health(self.ports["temporal"]),
                env,
                self.state_dir,
            ),
            Part(
                "worker", (*crawlctl, "worker"), self.url("worker") + "/readyz", env, grace_s=25.0
            ),
            Part("gateway", (*crawlctl, "gateway"), self.url("gateway") + "/readyz", env),
            Part("scheduler", (*crawlctl, "scheduler"), self.url("scheduler") + "/readyz", env),
        ]
        examples = examples_dir()
        if self.site is not None:
            folder = (
                sys.executable,
                "-m",
                "crawler_lifecycle.cli.stack.site",
                "--folder",
                str(self.site),
            )
            command = (*folder, "--port", str(self.ports["site"]), "--host", self.host("site"))
            parts.append(Part("site", command, self.url("site") + "/.healthz", env))
        elif examples is not None:
            site = [
                sys.executable,
                "-m",
                "examples.site",
                "--port",
                str(self.ports["site"]),
                "--services",
                str(self.services),
                "--host",
                self.host("site"),
            ]
            parts.append(
                Part("site", site, self.url("site") + "/healthz", env, cwd=examples.parent)
            )
        return {part.name: part for part in parts}

    def choose_ports(
        self, known: Mapping[str, object], say: Callable[[str], None], claims: ExitStack
    ) -> dict[str, int]:
        """Return a port for every part: the part's port in the earlier addresses ``known``, its
        default port, or a free one.

        No other stack chooses any of these ports until ``claims`` is closed.
        """
        chosen: dict[str, int] = {}
        for name, usual in PORTS.items():
            if name in ON_DEMAND and name not in self.demanded:
                continue
            before = _port_of(known.get(name))
            wanted = [before] if before else [] if self.only_free_ports else [usual]
            free = [port for port in wanted if processes.claim(port, claims)]
            chosen[name] = (
                free[0] if free else processes.free_port(lambda port: processes.claim(port, claims))
            )
            if wanted and not free:
                say(f"port {wanted[0]} is in use; {name} gets {chosen[name]} instead")
        return chosen


def kept_key(file: Path) -> str:
    """Return the random key in a file that only its owner can read. If the file does not exist,
    create it with a new key.

    The next start uses the same key, because crawlers may still be running with tokens that were
    made with this key.
    """
    if not file.exists():
        draft = file.with_name(f".{secrets.token_hex(8)}")
        try:
            with open(
                os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
            ) as new:
                new.write(secrets.token_hex(32))
                new.flush()
                os.fsync(new.fileno())
            with contextlib.suppress(FileExistsError):  # another process has just created the file
                # Never leave a partly written file: with an empty key, anybody could make tokens.
                os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    return file.read_text()


def _without_proxy(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exclude loopback addresses from any proxy, because a proxy cannot reach
    the crawled site on this machine.
    """
    said = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if said.strip() == "*":
        return {}
    names = [name for name in (part.strip() for part in said.split(",")) if name]
    value = ",".join(dict.fromkeys([*names, LOOPBACK, "localhost"]))
    return {"no_proxy": value, "NO_PROXY": value}


def _port_of(address: object) -> int | None:
    if not isinstance(address, str):
        return None
    return urlsplit(address if "//" in address else f"//{address}").port


def write_crawlers(source: Path, target: Path, site: str | None, *, in_images: bool) -> None:
    """Write a catalogue for this stack, with absolute folders and the real address of the site.

    If ``in_images`` is true, crawlers execute in the image that ``images/crawler`` builds, which
    contains the examples in a different folder. If Scrapy is not installed, Scrapy crawlers are
    left out.
    """
    import yaml  # imported here, because no other verb needs it

    catalogue = yaml.safe_load(source.read_text())
    if not in_images and find_spec("scrapy") is None:
        catalogue = [crawler for crawler in catalogue if crawler["kind"] != "scrapy"]
    for crawler in catalogue:
        if "project" in crawler:
            folder = (source.parent / crawler["project"]).resolve()
            crawler["project"] = IMAGE_PROJECT if in_images else str(folder)
        argument = (crawler.get("args") or {}).get("site")
        if site is not None and isinstance(argument, dict) and "default" in argument:
            argument["default"] = site
    _replace(
        target,
        f"# Written by crawlctl dev from {source.name}; edit that file.\n"
        + yaml.safe_dump(catalogue),
    )


def write_site_crawler(target: Path, site: str) -> None:
    """Write a catalogue with only the generic crawler, for this site."""
    import yaml

    arguments: dict[str, dict[str, object]] = {"start": {"default": f"{site}/"}}
    arguments |= {
        name: {"required": False}
        for name in ("max_pages", "max_depth", "allow", "deny", "delay", "save")
    }
    crawler = {
        "name": SITE_CRAWLER,
        "kind": "scrapy",
        "project": str(Path(__file__).resolve().parents[2] / "generic"),
        "args": arguments,
        "resources": {"cpu": "1", "memory": "512Mi"},
        "resumable": True,
        "splits": False,
    }
    _replace(
        target,
        f"# Written by crawlctl dev at each start.\n{yaml.safe_dump([crawler], sort_keys=False)}",
    )


def _replace(target: Path, text: str) -> None:
    draft = target.with_name(f"{target.name}.draft")
    draft.write_text(text)
    draft.replace(target)
