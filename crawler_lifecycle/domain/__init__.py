"""The terms and rules of crawls: pure Python with the standard library only, without I/O or
Temporal.
"""
