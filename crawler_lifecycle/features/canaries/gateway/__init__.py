"""The fields of requests that begin canaries."""
