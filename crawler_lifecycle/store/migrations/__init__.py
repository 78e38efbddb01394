"""Migrations by Alembic, run by ``crawler_lifecycle.store.upgrade``; there is no alembic.ini."""
