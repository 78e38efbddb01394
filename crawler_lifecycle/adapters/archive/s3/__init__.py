"""Archives in S3: multipart uploads, errors, and leftovers."""
