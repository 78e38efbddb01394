"""The component in whose pod the doctor runs: other components' checks are skipped there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

#: Checks of the process itself and of its place; every component has them.
OWN = frozenset({"environment", "versions", "memory", "disk", "cluster"})
#: Checks of a gateway whose other parts nobody named.
NAMED = frozenset({"environment", "versions", "gateway"})
_STORES = frozenset({"temporal", "database"})

#: Deployment -> what else its pods use. ``deploy/base/services/network.yaml`` lets it reach this and nothing else.
USES: Mapping[str, frozenset[str]] = {
    "worker-workflows": _STORES | {"catalogue", "events", "pushes"},
    "worker-cluster": _STORES | {"catalogue", "scheduler"},
    "worker-control": _STORES | {"catalogue"},
    "worker-export": _STORES | {"catalogue", "archive", "files"},
    "worker-audit": _STORES | {"catalogue", "schedules", "truth"},
    "worker-plans": _STORES | {"catalogue", "plans", "archive"},
    "worker-webhooks": _STORES | {"catalogue", "webhooks"},
    "worker-observer": _STORES | {"catalogue"},
    "gateway": _STORES | {"scheduler", "files"},
    "scheduler": frozenset({"catalogue"}),
}


def component() -> str | None:
    """The component in whose pod we are, by the pod's name, which begins with that of its Deployment; else ``None``."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    found = re.fullmatch(rf"(?:.+-)?({'|'.join(USES)})-[a-z0-9]+-[a-z0-9]+", socket.gethostname())
    return found[1] if found else None
