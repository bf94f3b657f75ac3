"""The decisions of a running pipeline, without threads, clocks or Spark."""
