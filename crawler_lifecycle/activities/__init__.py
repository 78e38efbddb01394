"""Activities of the specification, one module for each stage.

Their classes are thin, and their fields are ports. Activities block, and run on thread pools. Each
docstring describes what a second execution does, because Temporal repeats an activity if its worker
dies after the effect and before the response.
"""
