"""The face for Danube's own clients: their gRPC services over the sessions of this broker."""
