"""Payloads as columns: decoders, schemas, and what becomes of records that do not fit."""
