"""The OpenID Connect providers for tests of the web UI: a small one of ours, and Dex, a real one.

``python -m tests.ui.providers`` builds Dex from pinned Go modules, into a cache folder next to the
test cluster's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from crawler_lifecycle.cli.stack import processes
from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.binaries import NoBinaries, Program
from tests.support.faulty_http import serving
from tests.support.issuer import CLIENT, PEOPLE, SECRET, Issuer

_MODULE = os.path.relpath(Path(__file__).with_name("programs") / "dex", binaries.MODULES)
DEX = Program("dex", _MODULE, "github.com/dexidp/dex/cmd/dex")
#: The passwords of ``PEOPLE``, as Dex needs them.
_HASHES = {
    "ann@example.com": "$2b$10$abcdefghijklmnopqrstuu23JPZtHcGhwXSF41f93o/7vBdDut3Xu",
    "bob@example.com": "$2b$10$abcdefghijklmnopqrstuu7TafERl.LoW8ZdGXwj1GJdO0M45b/5W",
}


@dataclass(frozen=True)
class Provider:
    """A running provider, on another site than the gateway."""

    issuer: str
    end: Callable[[], None]

    def settings(self, page: str) -> dict[str, str]:
        """Return variables of a gateway that knows its people."""
        roles = {"operators": {"role": "operate", "project": "*"}}
        values = {
            "ISSUER": self.issuer,
            "CLIENT_ID": CLIENT,
            "CLIENT_SECRET": SECRET,
            "ROLES": json.dumps(roles),
        }
        values["SCOPES"] = "openid email profile groups"
        return {f"LIFECYCLE_OIDC__{name}": value for name, value in values.items()} | {
            "LIFECYCLE_GATEWAY__WEB_UI_URL": page
        }

    def token(self, email: str) -> str:
        """Return an ID token, as a program gets it."""
        form = {"grant_type": "password", "username": email, "password": PEOPLE[email][0]}
        form |= {
            "client_id": CLIENT,
            "client_secret": SECRET,
            "scope": "openid email profile groups",
        }
        answer = httpx.post(f"{self.issuer}/token", data=form)
        return str(answer.raise_for_status().json()["id_token"])


#: Starts a provider for a page at this address.
Start = Callable[[str, Path], AbstractContextManager[Provider]]


@contextmanager
def small(page: str, folder: Path) -> Iterator[Provider]:
    """Our own provider."""
    issuer = Issuer()
    with serving(issuer):
        yield Provider(issuer.issuer, lambda: issuer.faults.extend(["drop"] * 1000))


@contextmanager
def dex(page: str, folder: Path) -> Iterator[Provider]:
    """Dex, with everything in memory."""
    port = processes.free_port()
    issuer = f"http://localhost:{port}/dex"
    people = [
        {
            "email": email,
            "hash": _HASHES[email],
            "username": email,
            "userID": email,
            "groups": groups,
        }
        for email, (_, groups) in PEOPLE.items()
    ]
    client = {
        "id": CLIENT,
        "secret": SECRET,
        "name": "crawls",
        "redirectURIs": [f"{page}/login/oidc/back"],
    }
    config = {
        "issuer": issuer,
        "storage": {"type": "memory"},
        "web": {"http": f"127.0.0.1:{port}"},
        "oauth2": {"skipApprovalScreen": True, "passwordConnector": "local"},
        "enablePasswordDB": True,
        "staticClients": [client],
        "staticPasswords": people,
    }
    file = folder / "dex.json"
    file.write_text(json.dumps(config))
    with (folder / "dex.log").open("w") as log:
        process = subprocess.Popen(
            [available() / "dex", "serve", str(file)], stdout=log, stderr=log
        )

        def end() -> None:
            process.terminate()
            process.wait(60)

        try:
            _wait(issuer, process)
            yield Provider(issuer, end)
        finally:
            end()


def _wait(issuer: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "Dex ended; dex.log says why"
        try:
            if httpx.get(f"{issuer}/.well-known/openid-configuration").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("Dex does not answer")


def folder() -> Path:
    """Return where Dex is, or will be."""
    return binaries.cache_root().with_name("dex") / binaries.key([DEX])


def available() -> Path:
    """Return the folder with Dex. Raises NoBinaries."""
    if not (folder() / DEX.name).exists():
        raise NoBinaries(
            f"dex not found in {folder()}: run `python3 -m tools test-oidc` (a minute, once)"
        )
    return folder()


def build() -> Path:
    """Build Dex unless it exists. Raises NoBinaries without Go, or with the compiler's message."""
    if shutil.which("go") is None:
        raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder() / DEX.name).exists():
            binaries._build(DEX, folder(), binaries._say)
    return folder()


if __name__ == "__main__":
    try:
        print(build())
    except NoBinaries as error:
        sys.exit(str(error))
