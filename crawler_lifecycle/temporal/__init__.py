"""How we speak with Temporal, and nothing else."""
