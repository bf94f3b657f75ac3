"""Dispatch, which decides who gets what next: one state machine per subscription, and the pump that serves it."""
