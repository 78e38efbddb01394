"""Canaries: new versions that only a share of the runs uses until they are judged."""
