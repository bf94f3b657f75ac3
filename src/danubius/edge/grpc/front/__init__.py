"""The gRPC front: a process of its own that speaks HTTP/2, so that the broker does not."""
