"""The Kubernetes cluster: each task is one Job with one pod.

Its state is read from complete lists of Jobs and pods.
"""
