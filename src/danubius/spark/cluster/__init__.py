"""Sessions and clusters of Spark: processes, settings, and this package on its way to executors."""
