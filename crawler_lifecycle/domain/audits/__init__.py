"""The rules of audits: the compared data, the judgements, the repairs, and the record of
corrections.
"""
