"""The record batch: one byte layout from the producer to Spark. Pure; see docs/internals/record-batch.md."""
