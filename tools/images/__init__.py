"""Our container images: base, build, bill of materials, and what is compared with them.

``python -m tools.images``.
"""
