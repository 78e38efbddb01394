"""Verbs for administrators: services, database, cluster and audits."""
