"""The rules for audits: the data that audits compare, their judgements and repairs, and
corrections."""
