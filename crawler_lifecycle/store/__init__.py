"""The database layer for SQLite, MySQL 8 and MariaDB.

Only this package changes statuses, always by compare-and-set.
"""
