"""Activities of graphs: pick steps, call functions, begin runs, and answer questions from
functions.
"""
