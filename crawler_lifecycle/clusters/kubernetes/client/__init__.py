"""The client of the Kubernetes API: bytes, objects, watches, deadlines and errors."""
