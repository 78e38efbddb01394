"""Kubernetes: each task is one Job with one pod, and its state is read from complete lists of both."""
