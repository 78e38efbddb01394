"""Our container images: their base, build, bill of materials, and comparison.

The command is ``python -m tools.images``.
"""
