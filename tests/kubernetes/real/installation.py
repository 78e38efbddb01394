"""``deploy/`` installed on a real node by docs/deployment.md, with what an installer has to
provide.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from crawler_lifecycle.cli.client.gateway import Gateway
from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import Part, until
from tests.kubernetes.cluster.services import ServiceNetwork
from tests.kubernetes.real.real_harness import ACTOR, actor_image
from tests.support import service_image
from tests.support.event_bus import BUS, moto_bus
from tests.support.manifests import DEPLOY, Document
from tests.support.mariadb import MariaDb, running_mariadb
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, rclone_s3
from tests.support.temporal import temporal_binary

SERVICES, CRAWLS = "crawler-lifecycle", "crawls"
OVERLAY = "overlays/production"
#: Real containers on a machine with few processors: generous, and reached only if something never
#: comes.
PATIENCE_S = 300.0
#: The API server and the kubelet report that the container runtime could not start a command.
NOT_BEGUN = re.compile(r"^error: Internal error occurred: .*failed to exec in container", re.M)
FORCE = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
SCHEMA = "lifecycle"
SECRETS = DEPLOY / "secrets/secrets.yaml"
#: Leaves a page, and ends when the expected file exists on the volume for the state of crawls.
PROGRAM = """
import os, pathlib, time
pathlib.Path(os.environ["CRAWL_FILES_DIR"], "page.html").write_text("<p>one</p>")
print("waiting", flush=True)
while not pathlib.Path(os.environ["CRAWL_STATE_DIR"], "go").exists():
    time.sleep(0.1)
"""
CATALOGUE: list[Document] = [
    {
        "name": "writer",
        "kind": "command",
        "command": ["python3", "-c", PROGRAM],
        "image": ACTOR,
        "resources": {"cpu": "250m", "memory": "96Mi"},
        "stop_signal": "SIGTERM",
        "resumable": True,
    },
    {
        "name": "deaf",
        "kind": "command",
        "command": ["python3", "/app/actor.py"],
        "image": ACTOR,
        "args": {"do": {"default": "ignore"}},
        "resources": {"cpu": "250m", "memory": "96Mi"},
        "stop_signal": "SIGTERM",
    },
]


class Installation:
    """An installation; ``start`` returns when everything exists except our own pods, ``end`` leaves
    nothing.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.admin, self.address = cluster, cluster.admin, cluster.places.gateway
        self.folder = folder
        self.deploy = folder / "deploy"
        self.volume = folder / "volume"
        self.tokens: dict[str, str] = {}
        self._open = ExitStack()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Provide what an installer has: images on the node, Temporal, database, storage, event
        bus, and our overlay.
        """
        self.network = self._open.enter_context(ServiceNetwork(self.cluster))
        with ThreadPoolExecutor(1) as beside:
            images = beside.submit(self._load_images)
            self._make_temporal()
            self._make_database()
            self._make_storage()
            self._make_overlay()
            images.result()

    def end(self) -> None:
        """Remove everything from the cluster, including held pods, and end what this machine
        provided.
        """
        try:
            ours = ("-l", "app.kubernetes.io/part-of=crawler-lifecycle", "--wait=false")
            self.kubectl("delete", "namespace,persistentvolume,priorityclass", *ours)
            self.kubectl("delete", "role,rolebinding", "-n", "kube-system", *ours)
            until(self._gone, "the namespaces are gone", PATIENCE_S, pause_s=0.5)
        finally:
            self._open.close()

    def _gone(self) -> bool:
        left = [
            name for name in (CRAWLS, SERVICES) if self.admin.find(f"/api/v1/namespaces/{name}")
        ]
        for name in left:
            for pod in self.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
                with suppress(AdminError):  # it disappeared meanwhile
                    self.hold(pod, name, ())
                    self.admin.delete(
                        f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}", FORCE
                    )
        return not left

    def hold(self, pod: Document, namespace: str, by: Sequence[str] = ("crawl.test/held",)) -> None:
        """Keep the pod's last status when it is deleted, or release it: without finalizers, it
        disappears with its end.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        self.admin.patch(path, {"metadata": {"finalizers": list(by) or None}})

    def _load_images(self) -> None:
        for archive in (
            service_image.assemble(self.folder / "service.tar"),
            actor_image(self.folder),
        ):
            self.cluster.nodes[0].load(archive)
            archive.unlink()

    def _make_temporal(self) -> None:
        port = self.cluster.places.port()
        self.temporal = self.network.lend(port)  # its parts find each other only on loopback
        command = [temporal_binary(), "server", "start-dev", "--port", str(port), "--headless"]
        part = Part(
            "temporal",
            [*command, "--namespace", CRAWLS, "--log-level", "error"],
            self.folder / "temporal.log",
        )
        part.start()
        self._open.callback(part.kill)

    def _make_database(self) -> None:
        """Create the two users of docs/security.md; the second one gets its rights when the tables
        exist.
        """
        # Durable, as the doctor requires.
        options = (f"--bind-address=127.0.0.1,{self.address}", "--innodb-flush-log-at-trx-commit=1")
        self.database: MariaDb = self._open.enter_context(running_mariadb(*options))
        self._passwords = {name: secrets.token_hex(12) for name in ("owner", "services")}
        self.database.execute(f"CREATE DATABASE {SCHEMA}")
        for name, password in self._passwords.items():
            self.database.execute(f"CREATE USER {name}@'%' IDENTIFIED BY '{password}'")
        self.database.execute(f"GRANT ALL ON {SCHEMA}.* TO owner@'%'")

    def grant(self, docs: Path = DEPLOY.parent / "docs") -> None:
        """Grant the rights of the services' user, exactly as in the file. Older builds have them on
        a page.
        """
        file = docs.parent / "deploy" / "database" / "services.sql"
        text = (file if file.exists() else docs / "security.md").read_text()
        granted = re.findall(r"^GRANT .* TO services@'%';$", text, re.MULTILINE)
        assert len(granted) > 10
        for statement in granted:
            self.database.execute(statement)

    def _url(self, user: str) -> str:
        return f"mysql+pymysql://{user}:{self._passwords[user]}@{self.address}:{self.database.port}/{SCHEMA}"

    def _make_storage(self) -> None:
        self.s3 = self._open.enter_context(rclone_s3(host=self.address))
        self.archive, self.files = self.s3.bucket(), self.s3.bucket()
        self.bus_url, self.arrived = self._open.enter_context(moto_bus(self.address))

    # --- what the installer writes ----------------------------------------------------------------

    def _make_overlay(self) -> None:
        """Copy all of deploy/, and change only what its files tell an installer to change."""
        shutil.copytree(DEPLOY, self.deploy)
        overlay = self.deploy / OVERLAY
        self._take_in(overlay / "kustomization.yaml", "gc", "shared-volume")
        self._one_of_each(overlay / "kustomization.yaml")
        image = overlay / "image/kustomization.yaml"
        component = yaml.safe_load(image.read_text())
        name, _, tag = service_image.REFERENCE.rpartition(":")
        component["images"] = [{"name": "crawler-lifecycle", "newName": name, "newTag": tag}]
        # "Nodes that may pull by themselves need neither": they have the image.
        del component["patches"]
        image.write_text(yaml.safe_dump(component))
        (overlay / "crawlers.yaml").write_text(yaml.safe_dump(CATALOGUE))
        settings = self._settings(overlay / "settings.env")
        (overlay / "settings.env").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        self._own_volumes(self.deploy / "components/shared-volume/volumes.yaml")

    @staticmethod
    def _one_of_each(file: Path) -> None:
        """Use one pod of each kind, as overlays/demo does: a second one is expensive here and
        proves nothing more.
        """
        with file.open("a") as more:
            more.write(
                "  - target: {kind: Deployment, labelSelector: app.kubernetes.io/name=crawler-lifecycle}\n"
                "    patch: |\n      - {op: replace, path: /spec/replicas, value: 1}\n"
            )

    @staticmethod
    def _take_in(file: Path, *components: str) -> None:
        wanted = file.read_text()
        for name in components:
            assert f"# - ../../components/{name}" in wanted
            wanted = wanted.replace(f"# - ../../components/{name}", f"- ../../components/{name}")
        file.write_text(wanted)

    def _settings(self, file: Path) -> dict[str, str]:
        lines = [
            line for line in file.read_text().splitlines() if line and not line.startswith("#")
        ]
        known = dict(line.split("=", 1) for line in lines)
        own = {
            "TEMPORAL_ADDRESS": self.temporal,
            "LIFECYCLE_ARCHIVE__URL": f"s3://{self.archive.name}/runs",
            "LIFECYCLE_EVENTS__URL": f"eventbridge://{BUS}",
            "LIFECYCLE_CLUSTER__FILES_URL": f"s3://{self.files.name}/tasks",
        }
        assert set(own) <= set(known)
        del known["LIFECYCLE_CLUSTER__PULL_SECRETS"]
        more = {"AWS_ENDPOINT_URL": self.s3.url, "AWS_ENDPOINT_URL_EVENTBRIDGE": self.bus_url}
        return known | own | more

    def _own_volumes(self, file: Path) -> None:
        """Use local volumes of the only node in place of those of an NFS server, and a folder to
        which pods may write.
        """
        self.volume.mkdir()
        self.volume.chmod(0o777)
        documents = list(yaml.safe_load_all(file.read_text()))
        for one in documents:
            if one["kind"] == "PersistentVolume":
                del one["spec"]["nfs"]
                one["spec"]["hostPath"] = {"path": str(self.volume)}
        file.write_text(yaml.safe_dump_all(documents))

    def secrets(self) -> list[Document]:
        """Return the required Secrets of deploy/secrets/secrets.yaml, and the cloud's, filled in."""
        scheduler, task_key = secrets.token_hex(32), secrets.token_hex(32)
        lines = []
        for role in ("read", "operate", "admin"):
            token, entry = _new_token(role)
            self.tokens[role] = token
            lines.append(entry)
        self.tokens["scheduler"] = scheduler
        values: dict[str, dict[str, str]] = {
            "crawler-lifecycle-database": {"url": self._url("services")},
            "crawler-lifecycle-database-owner": {"url": self._url("owner")},
            "crawler-lifecycle-scheduler": {"token": scheduler},
            "crawler-lifecycle-gateway": {
                "task-key": task_key,
                "login-key": task_key,
                "tokens.toml": "\n".join(lines),
            },
            "crawler-lifecycle-cloud": {
                "access-key-id": ACCESS_KEY,
                "secret-access-key": SECRET_KEY,
            },
        }
        templates = {
            one["metadata"]["name"]: one for one in yaml.safe_load_all(SECRETS.read_text())
        }
        for name, data in values.items():
            # Without an OpenID Connect provider, there is none.
            assert set(templates[name]["stringData"]) - {"oidc-client-secret"} == set(data), name
            templates[name]["stringData"] = data
        return [templates[name] for name in values]

    # --- by the administrator's kubectl -----------------------------------------------------------

    def kubectl(self, *words: str, stdin: str | None = None, seconds: float = PATIENCE_S) -> str:
        """Call kubectl. Return its output."""
        done = self._called(words, stdin, seconds)
        assert done.returncode == 0, (
            f"{' '.join(words)}\n{done.stderr}\n{done.stdout}\n{self.state()}"
        )
        return done.stdout

    def execute(self, component: str, *words: str) -> str:
        """Return what a command prints in a container of ``component``.

        It is repeated while the container runtime cannot start it: containerd has two seconds to
        load a container's task, which a busy machine exceeds. A command that has started is never
        repeated.
        """
        command = ("exec", "-n", SERVICES, f"deploy/{component}", "--", *words)
        until = time.monotonic() + PATIENCE_S
        while True:
            done = self._called(command, None, PATIENCE_S)
            not_begun = done.returncode == 1 and NOT_BEGUN.search(done.stderr)
            if not not_begun or time.monotonic() > until:
                break
            time.sleep(1)
        assert done.returncode == 0, (
            f"{' '.join(command)}\n{done.stderr}\n{done.stdout}\n{self.state()}"
        )
        return done.stdout

    def _called(
        self, words: tuple[str, ...], stdin: str | None, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        command = [
            str(binaries.available() / "kubectl"),
            "--kubeconfig",
            str(self.cluster.kubeconfig),
            *words,
        ]
        clean = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds + 30,
            env=clean,
            cwd=self.folder,
        )

    def prepare(self) -> None:
        """Follow "The first time": namespaces, Secrets, and everything except our processes."""
        namespaces = (
            "-f",
            "deploy/base/crawls/namespace.yaml",
            "-f",
            "deploy/base/services/namespace.yaml",
        )
        self.kubectl("apply", *namespaces)
        self.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(self.secrets()))
        self.kubectl("apply", "-k", f"deploy/{OVERLAY}", "-l", "!app.kubernetes.io/name")

    def migrate(self) -> None:
        """Follow "Then, and for each new version": the schema before the processes."""
        job = self.kubectl("kustomize", f"deploy/{OVERLAY}/migration")
        self.kubectl("replace", "--force", "-f", "-", stdin=job)
        wait = (
            "wait",
            "--for=condition=complete",
            "job/db-upgrade",
            "-n",
            SERVICES,
            f"--timeout={PATIENCE_S:g}s",
        )
        self.kubectl(*wait)
        self.grant()

    def apply(self) -> None:
        """The processes."""
        self.kubectl("apply", "-k", f"deploy/{OVERLAY}")
        self.network.refresh()

    def rolled_out(self) -> None:
        """Return when all pods of our Deployments are ready."""
        self.kubectl(
            *(
                "rollout",
                "status",
                "deployment",
                "-n",
                SERVICES,
                "-l",
                "app.kubernetes.io/name=crawler-lifecycle",
            ),
            f"--timeout={PATIENCE_S:g}s",
        )

    # --- polling ----------------------------------------------------------------------------------

    def pods(self, component: str | None = None) -> list[Document]:
        """Return our pods that are not being deleted."""
        label = f"component={component}" if component else "name=crawler-lifecycle"
        path = f"/api/v1/namespaces/{SERVICES}/pods?labelSelector=app.kubernetes.io%2F{label.replace('=', '%3D')}"
        found: list[Document] = self.admin.get(path)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def log(self, pod: Document, tail: int = 1000, *, before: bool = False) -> str:
        """Return the log of one of our pods; with ``before``, that of the previous container."""
        name = pod["metadata"]["name"]
        query = f"tailLines={tail}" + ("&previous=true" if before else "")
        return self.admin.text(f"/api/v1/namespaces/{SERVICES}/pods/{name}/log?{query}")

    def state(self) -> str:
        """Return unhealthy pods with their last output, for the message of a failure."""
        lines = []
        for pod in self.admin.get(f"/api/v1/namespaces/{SERVICES}/pods")["items"]:
            statuses = pod["status"].get("containerStatuses") or [{}]
            if (
                all(status.get("ready") for status in statuses)
                or pod["status"].get("phase") == "Succeeded"
            ):
                continue
            said = [pod["metadata"]["name"], str(pod["status"].get("phase")), json.dumps(statuses)]
            try:
                said.append(self.log(pod, 15))
            except Exception as error:
                said.append(f"no log: {error}")
            lines.append("\n".join(said))
        return "\n---\n".join(lines)

    @contextmanager
    def gateway(self, role: str = "operate") -> Iterator[Gateway]:
        """Return the gateway's Service for a caller with a token of this role."""
        address = self.network.address("gateway", SERVICES)
        with Gateway(f"http://{address}:8500", token=self.tokens[role], timeout_s=60) as found:
            yield found

    def audit(self) -> Document:
        """Return the report of an audit without repairs, by the worker of that role."""
        with self.gateway("admin") as admin:
            audit_id = admin.post("/v1/audit", {"repair": False})["audit_id"]
            until(
                lambda: (admin.audit_report(audit_id) or {}).get("ended_at"),
                "the audit's report",
                PATIENCE_S,
            )
            report = admin.audit_report(audit_id)
        assert report is not None
        return report


def _new_token(role: str) -> tuple[str, str]:
    """Return a token and its lines for tokens.toml, made as the page says."""
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli",
        "gateway",
        "token",
        "new",
        "--name",
        role,
        "--role",
        role,
    ]
    command += ["--project", "*"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    token, _, lines = done.stdout.partition("\n")
    return token, lines
