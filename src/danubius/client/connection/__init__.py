"""Connections to brokers: one session at a time each, the links that outlive them, and what holds on to a link."""
