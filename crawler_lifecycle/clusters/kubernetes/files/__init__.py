"""Logs and supporting files of tasks that ran in pods."""
