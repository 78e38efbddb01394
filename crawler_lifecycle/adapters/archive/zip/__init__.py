"""The archive itself: what is packed, in which order, and what is read from it again."""
