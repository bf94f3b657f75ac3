"""The blocking connection of Spark's processes to brokers, and the ledger files of brokers on the same machine."""
