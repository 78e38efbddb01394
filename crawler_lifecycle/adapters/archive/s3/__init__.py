"""Archives in S3: parts of a multipart upload, what a failure means, and what is left over."""
