"""The client for programs without an event loop; `danubius.blocking` is its public name."""
