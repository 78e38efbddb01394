"""The machinery for routes, request bodies and responses, and the OpenAPI document."""
