"""What both ends of `hintloop.scoring.v1` agree on: names, message sizes, keepalive."""

from __future__ import annotations

#: Longest message in bytes, either way; more goes through `ScoreStream`.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

#: Full name of the service, as health checking knows it.
SERVICE_NAME = "hintloop.scoring.v1.ForcedScoring"

#: dtypes in which the candidates' log-probabilities may travel, the default first.
TOPK_DTYPES = ("float16", "float32")

#: Response tokens of one part of a stream, when the request names none.
DEFAULT_PART_TOKENS = 1024

_SIZES: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

#: A second server on the same port is refused instead of sharing its requests.
SERVER_OPTIONS = (*_SIZES, ("grpc.so_reuseport", 0))

#: A connection whose other end is gone is noticed within half a minute, and looked for again within a few seconds.
CLIENT_OPTIONS = (
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
