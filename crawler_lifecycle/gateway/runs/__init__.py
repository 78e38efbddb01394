"""What the gateway does to runs."""
