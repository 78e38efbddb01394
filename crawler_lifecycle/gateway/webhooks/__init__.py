"""What is done to webhooks."""
