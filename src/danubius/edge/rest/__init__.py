"""REST on the HTTP port: administration, publishing, reading and consuming, described by OpenAPI."""
