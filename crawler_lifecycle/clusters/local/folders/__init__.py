"""Folders of local tasks: their files, read within limits, and their retention."""
