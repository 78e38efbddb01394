"""One connection to the Kubernetes API: bytes, objects, watches, deadlines and errors."""
