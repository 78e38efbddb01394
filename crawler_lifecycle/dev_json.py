"""A reader of ``.crawl/dev.json``, which contains the addresses of a ``crawlctl dev`` stack, with a
check whether the file can be trusted.

Another user who can write to a folder above ours could put such a file there and make us call that
user's addresses. Therefore the file and its folder must belong to our user, no other user may be
able to write to them, and every service must be on this machine. No token is sent to such an
address, because the gateway of ``crawlctl dev`` needs none.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from crawler_lifecycle.domain.loopback import leads_here
from crawler_lifecycle.domain.names import STACK_HEADER

FOLDER = ".crawl"
NAME = "dev.json"
DEV_JSON = Path(FOLDER, NAME)
#: Services that we call; they must be on this machine. A database (`--database`) may be on another
#: machine.
CALLED = ("gateway", "scheduler", "temporal", "worker", "metrics")
SIZE_MAX = 1024 * 1024

#: Field of the file -> environment variable that a stack sets for its processes.
VARIABLES = {
    "database": "LIFECYCLE_DATABASE__URL",
    "scheduler": "LIFECYCLE_SCHEDULER__URL",
    "gateway": "LIFECYCLE_GATEWAY__URL",
    "archive": "LIFECYCLE_ARCHIVE__URL",
    "events": "LIFECYCLE_EVENTS__URL",
    "temporal": "TEMPORAL_ADDRESS",
    "namespace": "TEMPORAL_NAMESPACE",
    "crawlers": "LIFECYCLE_CATALOGUE",
    "extra_catalogue": "LIFECYCLE_EXTRA_CATALOGUE",
    "state": "LIFECYCLE_CLUSTER__STATE_DIR",
    "cluster": "LIFECYCLE_CLUSTER__KIND",
    "kubeconfig": "LIFECYCLE_CLUSTER__KUBECONFIG",
    "context": "LIFECYCLE_CLUSTER__CONTEXT",
    "cluster_namespace": "LIFECYCLE_CLUSTER__NAMESPACE",
    "image": "LIFECYCLE_CLUSTER__IMAGE",
    "slots": "LIFECYCLE_CLUSTER__SLOTS",
    "pools": "LIFECYCLE_POOLS",
    "stack": "LIFECYCLE_STACK",
}

#: The setting that allows webhooks to call this machine. In a stack, it is true unless the
#: environment sets it to a different value.
LOOPBACK_WEBHOOKS = "LIFECYCLE_WEBHOOKS__LOOPBACK"

#: If any of these variables is set, the environment names its own services, and we do not search
#: for a stack.
NAMING = (
    *(
        "LIFECYCLE_CONFIG",
        "LIFECYCLE_DATABASE__URL",
        "LIFECYCLE_CLUSTER__KIND",
        "LIFECYCLE_CLUSTER__STATE_DIR",
    ),
    *("LIFECYCLE_SCHEDULER__URL", "TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE"),
)


def is_told(environment: Mapping[str, str]) -> bool:
    """Return whether this environment sets any of the variables in ``NAMING``."""
    return any(environment.get(name) for name in NAMING)


def identity(stack_id: str, folder: Path) -> str:
    """Return the value of ``STACK_HEADER`` that the services of the stack in this folder send."""
    return f"{stack_id} {quote(os.fsencode(os.path.realpath(folder)))}"


def folder_of(stack: str) -> str:
    """Return the folder in an ``identity``."""
    return os.fsdecode(unquote_to_bytes(stack.partition(" ")[2]))


class OtherStack(Exception):
    """Raised if the gateway at a stack's address belongs to another stack. The text contains both
    folders and the fix.
    """


class SetAside(Exception):
    """Raised if the file exists but is not trusted. The text contains the file, the reason and the
    fix.
    """


@dataclass(frozen=True, slots=True)
class Stack:
    """The content of one ``dev.json``."""

    file: Path
    known: Mapping[str, Any]

    def check(self, answer: Any) -> None:
        """Check that an answer (from ``httpx``) comes from the stack that this file describes.

        Raises ``OtherStack``.

        A stack that has ended leaves its file behind, and another stack may be using its port by
        now. If a folder was copied, the file in the copy names the original's stack.
        """
        answered = answer.headers.get(STACK_HEADER)
        folder = os.path.realpath(self.file.parent)
        if answered == self.known.get("stack") and (
            answered is None or folder_of(answered) == folder
        ):
            return
        other = f"the stack of {folder_of(answered)}" if answered else "another program"
        raise OtherStack(
            f"the stack of {folder} does not run: its previous address {self.known.get('gateway')} "
            f"belongs to {other}; "
            f"start it: crawlctl dev --state-dir {shlex.quote(folder)}, or name a gateway: "
            "crawlctl --gateway URL"
        )

    def guard(self, http: Any) -> None:
        """Restrict this ``httpx.Client`` to this stack: any other answer raises ``OtherStack``.

        Before a call that may change something, a call that changes nothing is sent, so that
        another stack does not execute the first one.
        """

        def ask_first(request: Any) -> None:
            if request.method != "GET":
                http.get(f"{self.known['gateway']}/healthz")

        http.event_hooks = {
            "request": [ask_first],
            "response": [self.check],
        }

    def variables(self) -> dict[str, str]:
        """Return the environment variables with the settings of the stack."""
        given = {
            variable: str(self.known[name])
            for name, variable in VARIABLES.items()
            if self.known.get(name)
        }
        return {LOOPBACK_WEBHOOKS: os.environ.get(LOOPBACK_WEBHOOKS) or "true", **given}


def read(file: Path) -> Stack | None:
    """Return the content of this file; ``None`` if it does not exist. Raises ``SetAside``."""
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _set_aside(file, f"its folder cannot be opened ({error.strerror})") from None
    try:
        opened = os.open(
            file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _set_aside(file, f"it cannot be opened ({error.strerror})") from None
    else:
        with os.fdopen(opened, "rb") as content:
            # Both descriptors stay open, so we read the same file that we checked. The folder may
            # be a link that belongs to our user.
            link = os.lstat(file.parent)
            if stat.S_ISLNK(link.st_mode) and link.st_uid != os.geteuid():
                raise _set_aside(file, f"its folder is a link that belongs to uid {link.st_uid}")
            for what, descriptor in (("it", opened), ("its folder", folder)):
                if problem := _not_ours(what, os.fstat(descriptor)):
                    raise _set_aside(file, problem)
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise _set_aside(file, "it is not a regular file")
            return Stack(file, _parsed(file, content.read(SIZE_MAX)))
    finally:
        os.close(folder)


def _parsed(file: Path, content: bytes) -> Mapping[str, Any]:
    try:
        known = json.loads(content)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        raise _set_aside(file, "it is not a JSON object")
    for name in CALLED:
        if known.get(name) is not None and not leads_here(known[name]):
            raise _set_aside(file, f"{name}: {str(known[name])[:100]!r} is not on this machine")
    return known


def _not_ours(what: str, found: os.stat_result) -> str | None:
    if found.st_uid != os.geteuid():
        return f"{what} belongs to uid {found.st_uid}, and this process has uid {os.geteuid()}"
    if found.st_mode & 0o022:
        return f"others can write to {what} (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _set_aside(file: Path, why: str) -> SetAside:
    return SetAside(
        f"{file} is ignored: {why}; if the file is not yours, remove it; if it is yours, start "
        "crawlctl dev again in "
        "the same folder; or name the gateway: crawlctl --gateway URL"
    )


def nearest(say: Callable[[str], None]) -> Stack | None:
    """Return the stack of the working directory, or of its nearest parent that has one; ``None`` if
    there is none.

    ``say`` is called with a message about every file that is not trusted.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        try:
            found = read(folder / DEV_JSON)
        except SetAside as aside:
            say(str(aside))
            continue
        if found is not None:
            return found
    return None


class ConfigUnreadable(Exception):
    """Raised if the file that ``LIFECYCLE_CONFIG`` names cannot be read. The text contains the
    reason.
    """


def gateway_setting(name: str) -> str | None:
    """Return a setting of the gateway, ``url`` or ``token``; ``None`` if it is not set.

    The environment takes precedence over the file that ``LIFECYCLE_CONFIG`` names. Raises
    ``ConfigUnreadable``.
    """
    path = os.environ.get("LIFECYCLE_CONFIG")
    if found := os.environ.get(f"LIFECYCLE_GATEWAY__{name.upper()}"):
        return found
    if not path:
        return None
    import tomllib  # imported here, because most calls read no file

    try:
        section = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("gateway")
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(f"LIFECYCLE_CONFIG: {path!r} cannot be read: {error}") from None
    value = section.get(name) if isinstance(section, dict) else None
    return value if isinstance(value, str) else None


def user() -> str:
    """Return the name of the system user. This name is recorded when the user starts or stops
    something.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container, the user may have no name
        return f"uid {os.getuid()}"
