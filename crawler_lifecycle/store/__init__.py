"""The database, on SQLite, MySQL 8 and MariaDB.

Only this package changes a status, always by compare-and-set.
"""
