"""Sites: the hosts that crawls visit, and the limits that all runs together keep there."""
