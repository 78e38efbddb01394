"""Activities of graphs: pick steps, call functions, begin runs, and answer questions of
functions.
"""
