"""Commands on runs, and what they need of Temporal."""
