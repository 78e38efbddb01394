"""The rows of canaries."""
