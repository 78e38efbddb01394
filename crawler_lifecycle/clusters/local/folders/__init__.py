"""The folders of local tasks: reading their files within limits, and their retention."""
