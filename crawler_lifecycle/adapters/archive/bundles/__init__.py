"""Bundles: the supporting files that pods uploaded themselves."""
