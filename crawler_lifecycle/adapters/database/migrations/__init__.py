"""Alembic migrations, run by ``crawler_lifecycle.adapters.database.upgrade``; there is no alembic.ini."""
