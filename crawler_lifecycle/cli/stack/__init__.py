"""The embedded default: the whole stack on this machine."""
