"""The trainer: samples in, advantages, one optimizer step, checkpoints, and weights out to the engines."""

import os

# Before anything imports gRPC. Processes that are forked here (checkpoint writers) speak none, and where another thread
# was in a call, its fork handlers abort one in some forty of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
