"""Activities for audits: they find, judge and repair differences between the database, the cluster
and Temporal.
"""
