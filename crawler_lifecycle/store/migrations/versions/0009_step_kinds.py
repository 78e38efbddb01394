"""The database does not list the kinds of steps any more: a new kind needs no migration."""

from __future__ import annotations

from crawler_lifecycle.store.migrations import ddl

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

#: An older build has no graphs with steps of a new kind. Where a newer one sent some, it lets these steps stand.
WORKS_FROM = "0001"
FINGERPRINT = "200b05ae1da30616"

_STATES = (
    "state IN ('suspended', 'scheduled', 'available', 'executing', 'retryable', 'completed', 'cancelled', 'discarded')"
)
_BOTH = f"kind IN ('function', 'crawl', 'manager', 'graph') AND {_STATES}"


def upgrade() -> None:
    ddl.replace_check("graph_step", "words", _BOTH, _STATES)


def downgrade() -> None:
    ddl.replace_check("graph_step", "words", _STATES, _BOTH)
