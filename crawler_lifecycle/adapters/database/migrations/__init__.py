"""Migrations by Alembic, run by ``crawler_lifecycle.adapters.database.upgrade``; there is no alembic.ini."""
