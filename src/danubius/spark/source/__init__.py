"""Reading topics: plans, tasks and rows, of batches and of streams."""
