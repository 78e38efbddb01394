"""The rules of incidents: pure Python."""
