"""Migrations by Alembic. ``schema_version.upgrade`` runs them, without an alembic.ini."""
