"""Routes, commands and responses about runs."""
