"""Features extend the life of a run. Each folder has all layers of one feature, and its
registration.
"""

from .canaries.feature import CANARIES
from .catalogue.feature import CATALOGUE
from .graphs.feature import GRAPHS
from .incidents.feature import INCIDENTS
from .managers.feature import MANAGERS
from .mcp.feature import MCP
from .packages.feature import PACKAGES
from .schedules.feature import SCHEDULES
from .scrapyd.feature import SCRAPYD
from .sites.feature import SITES
from .user_code.feature import USER_CODE
from .webhooks.feature import WEBHOOKS

#: The only list of registered features. Audits compare in this order (``audited``), and the
#: histories of open audits depend on it.
FEATURES = (
    MANAGERS,
    GRAPHS,
    SCHEDULES,
    WEBHOOKS,
    INCIDENTS,
    SITES,
    CANARIES,
    CATALOGUE,
    PACKAGES,
    USER_CODE,
    SCRAPYD,
    MCP,
)
#: The kinds of incidents, by name.
INCIDENT_KINDS = {kind.name: kind for feature in FEATURES for kind in feature.kinds}
