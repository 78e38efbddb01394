"""Migrations by Alembic. ``crawler_lifecycle.store.upgrade`` runs them, without an alembic.ini."""
