"""The reference scheduler service: a small HTTP API that deploys tasks onto a cluster
(docs/scheduler.md).

The service uses the catalogue and the cluster, but no database and no records of runs. Users can
replace it with their own service that has the same API.
"""
