"""The reference scheduler service: a small HTTP API that puts tasks onto a cluster (docs/scheduler.md).

It knows the catalogue and the cluster and nothing of runs or databases, so that it can be replaced by a service of
one's own that speaks the same contract.
"""
