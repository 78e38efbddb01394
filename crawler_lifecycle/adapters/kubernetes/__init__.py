"""Kubernetes: each task is one Job with one pod, and its truth is read from complete lists of both."""
