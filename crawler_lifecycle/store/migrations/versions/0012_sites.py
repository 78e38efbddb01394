"""Sites, their leases, and the sites of runs. Their SQL is frozen beside this module."""

from __future__ import annotations

from alembic import op

from crawler_lifecycle.store.migrations import ddl

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

#: An older build records no sites for its runs, so their tasks do not count.
WORKS_FROM = "0001"
FINGERPRINT = "3b4a1b02b0d26deb"


def upgrade() -> None:
    ddl.create_tables(op.get_bind(), "0012")


def downgrade() -> None:
    for table in ("run_robots", "site_robots", "site_block", "site_report", "site_day"):
        op.drop_table(table)
    for table in ("site_minute", "site_lease", "site_ticket", "run_site", "site"):
        op.drop_table(table)
