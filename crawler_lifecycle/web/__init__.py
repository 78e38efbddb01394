"""What our HTTP services share: problem documents, strict bodies, the guard in front and the port underneath."""
