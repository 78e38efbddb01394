"""The embedded default: everything on this machine."""
