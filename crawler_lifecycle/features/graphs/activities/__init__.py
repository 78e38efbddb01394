"""Activities of graphs: pick steps, call functions, begin runs, and answer the questions of
functions.
"""
