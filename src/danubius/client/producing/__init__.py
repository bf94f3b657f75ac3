"""Producers: messages in, batches out, receipts back; and the ways of delayed and of staged messages."""
