"""The folders of local tasks: their files, which are read within limits, and their retention."""
