"""Sans-IO: the subscription state machine, its windows and selectors."""
