"""The terms and rules of a crawl: pure Python with the standard library, without input, output or
Temporal.
"""
