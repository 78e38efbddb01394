"""Looks: what runs, what waits and what ended, read from complete lists."""
