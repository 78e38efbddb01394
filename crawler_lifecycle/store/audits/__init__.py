"""What audits read and find."""
