"""The sources of the code of packages, and the stores for it."""
