"""Audits: what is found, judged, taken over and settled."""
