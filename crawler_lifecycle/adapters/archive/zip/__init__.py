"""The zip: packing, unpacking, names, and the manifest."""
