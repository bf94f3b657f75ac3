"""Ledgers behind gRPC: the service that any backend may offer, and the driver that speaks to it."""
