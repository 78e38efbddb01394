"""A randomised soak of the whole stack, which checks whether the service has ever reported anything
untrue.

The command is ``python -m tools.soak --minutes N --seed S`` (see README.md in this folder).
Crawlers keep their own journals, the soak keeps a journal of its actions, and at the end both are
compared with everything that the service reports.
"""
