"""The component in whose pod the doctor runs.

In a pod, only the systems that its component uses are checked.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

#: Checks of the process itself and its environment, for every component.
OWN = frozenset({"environment", "versions", "cluster"})
#: The checks that run if only the address of a gateway is configured.
NAMED = frozenset({"environment", "versions"})
#: Checks of the systems that an installation needs.
INSTALLATION = frozenset(
    {"environment", "versions", "temporal", "database", "cluster", "archive", "files"}
)
_STORES = frozenset({"temporal", "database"})

#: Deployment -> further checks in its pods. ``deploy/base/services/network.yaml`` allows only the
#: connections that these checks need.
USES: Mapping[str, frozenset[str]] = {
    "worker-workflows": _STORES | {"events", "pushes"},
    "worker-cluster": _STORES,
    "worker-control": _STORES,
    "worker-export": _STORES | {"archive", "files"},
    "worker-audit": _STORES,
    "worker-user-code": _STORES | {"archive"},
    "worker-webhooks": _STORES,
    "worker-observer": _STORES,
    "gateway": _STORES | {"files", "quotas"},
    "scheduler": frozenset(),
}


def component() -> str | None:
    """Return the component of this pod, whose name contains the Deployment's name; ``None`` outside
    such a pod.
    """
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    found = re.fullmatch(rf"(?:.+-)?({'|'.join(USES)})-[a-z0-9]+-[a-z0-9]+", socket.gethostname())
    return found[1] if found else None
