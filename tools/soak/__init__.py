"""A randomised soak of the whole stack that asks one question: has it ever told something untrue?

``python -m tools.soak --minutes N --seed S`` (README.md beside it). Crawlers keep journals of their
own, the soak keeps one of what it did, and at the end both are held against everything that the
service says.
"""
