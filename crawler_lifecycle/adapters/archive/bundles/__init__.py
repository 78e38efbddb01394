"""Bundles: supporting files that pods uploaded themselves."""
