"""Which component we are when the doctor runs in its pod: other components' checks are skipped there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from crawler_lifecycle.domain.errors import LifecycleError

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

#: Checks of the process itself and of its place; every component has them.
OWN = frozenset({"environment", "versions", "limits", "disk", "cluster"})
#: Checks of a gateway whose other parts nobody named.
NAMED = frozenset({"environment", "versions", "gateway"})
_STORES = frozenset({"temporal", "database"})

#: Service account -> what else it uses. ``deploy/base/services/network.yaml`` lets it reach this and nothing else.
USES: Mapping[str, frozenset[str]] = {
    "worker-workflows": _STORES | {"catalogue", "events", "pushes"},
    "worker-cluster": _STORES | {"catalogue", "scheduler"},
    "worker-control": _STORES | {"catalogue"},
    "worker-export": _STORES | {"catalogue", "archive", "files"},
    "worker-audit": _STORES | {"catalogue", "schedules", "truth"},
    "worker-plans": _STORES | {"catalogue", "plans"},
    "worker-webhooks": _STORES | {"catalogue", "webhooks"},
    "worker-observer": _STORES | {"catalogue"},
    "gateway": _STORES | {"scheduler", "tokens", "files"},
    "scheduler": frozenset({"catalogue"}),
}

#: Seconds for the one question. Without an answer everything is checked, and the cluster's line says why.
CONNECT_S, READ_S = 2.0, 3.0


#: Where a pod has the token of its account, when one is mounted.
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def component(settings: Settings) -> str | None:
    """The component in whose pod we are; ``None`` anywhere else, or when that cannot be told.

    By the API server's word; in a pod without a token by its name, which begins with that of its Deployment.
    """
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    if not _can_ask(settings):
        return tokenless(settings)
    from crawler_lifecycle.clusters.kubernetes import rbac
    from crawler_lifecycle.clusters.kubernetes.kind import api_of

    soon = settings.cluster.model_copy(update={"connect_s": CONNECT_S, "read_s": READ_S})
    try:
        me = rbac.who_am_i(api_of(soon))
    except LifecycleError:
        return None  # told by the check of the cluster
    name = rbac.component(me)
    return name if name in USES else None


def tokenless(settings: Settings) -> str | None:
    """The component in whose pod we are, if it is one that asks the cluster nothing and has no token for it."""
    from crawler_lifecycle.clusters.kubernetes import rbac

    if not os.environ.get("KUBERNETES_SERVICE_HOST") or _can_ask(settings):
        return None
    names = "|".join(rbac.RIGHTLESS)
    found = re.fullmatch(rf"({names})-[a-z0-9]+-[a-z0-9]+", socket.gethostname())
    return found[1] if found else None


def _can_ask(settings: Settings) -> bool:
    """Whether there is anything by which the API server would know us."""
    return settings.cluster.kubeconfig is not None or bool(os.environ.get("KUBECONFIG")) or TOKEN.exists()
