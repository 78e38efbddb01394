"""Polls: the state of tasks, read from complete lists of Jobs and pods."""
