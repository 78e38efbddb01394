"""Activities of audits: find differences between database, cluster and Temporal, judge them, and
repair them.
"""
