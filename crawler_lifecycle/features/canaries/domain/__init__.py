"""The rules of canaries."""
