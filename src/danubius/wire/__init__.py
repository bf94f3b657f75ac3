"""The native protocol, without IO: commands, frames and the connection that speaks them.

`connection.Connection` is the way in; docs/internals/wire-protocol.md is the specification.
"""
