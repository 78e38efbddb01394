"""Zip archives: packing, unpacking, names, and the manifest."""
