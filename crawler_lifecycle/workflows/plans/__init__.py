"""The workflows of managers and graphs."""
