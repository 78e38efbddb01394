"""The parts that our HTTP services share: problem documents, strict bodies, request checks, and the
listening socket.
"""
