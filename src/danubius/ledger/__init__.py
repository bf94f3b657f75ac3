"""The per-topic log that readers see: ledgers, their index, the tail cache and the disk behind it."""
