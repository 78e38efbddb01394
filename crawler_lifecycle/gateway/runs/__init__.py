"""Routes, commands and answers about runs."""
