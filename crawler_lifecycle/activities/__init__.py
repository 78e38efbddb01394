"""The activities of the specification, one module a stage: thin classes whose fields are ports.

They block and run on thread pools. Each docstring says what a second execution does, because every one of them will be
executed twice some day: Temporal repeats an activity whose worker died after the effect and before the answer.
"""
