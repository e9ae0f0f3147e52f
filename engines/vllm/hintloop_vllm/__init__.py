"""What is added to vLLM: reloading from disk, and a weight-transfer backend. See `worker`."""
