"""The rules of audits: the data they compare, their judgements and repairs, and the corrections."""
