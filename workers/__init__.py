"""One main module for each role of a worker, for images and process managers. ``crawlctl worker``
calls the same code.
"""
