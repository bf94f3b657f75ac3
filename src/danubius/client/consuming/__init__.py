"""Consumers and readers: deliveries in, messages out, acknowledgements back."""
