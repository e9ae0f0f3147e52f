from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data", "encoding")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    encoding: str
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., encoding: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("prompt_ids", "response_ids", "top_k", "candidate_ids", "model", "topk_dtype", "request_id", "encoding")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOPK_DTYPE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: Tensor
    response_ids: Tensor
    top_k: int
    candidate_ids: Tensor
    model: str
    topk_dtype: str
    request_id: str
    encoding: str
    def __init__(self, prompt_ids: _Optional[_Union[Tensor, _Mapping]] = ..., response_ids: _Optional[_Union[Tensor, _Mapping]] = ..., top_k: _Optional[int] = ..., candidate_ids: _Optional[_Union[Tensor, _Mapping]] = ..., model: _Optional[str] = ..., topk_dtype: _Optional[str] = ..., request_id: _Optional[str] = ..., encoding: _Optional[str] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("logprobs", "topk_ids", "topk_logprobs", "tail_logprobs", "model", "dialect", "temperature", "num_prompt_tokens", "num_response_tokens", "request_id")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOPK_IDS_FIELD_NUMBER: _ClassVar[int]
    TOPK_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TAIL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RESPONSE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    logprobs: Tensor
    topk_ids: Tensor
    topk_logprobs: Tensor
    tail_logprobs: Tensor
    model: str
    dialect: str
    temperature: float
    num_prompt_tokens: int
    num_response_tokens: int
    request_id: str
    def __init__(self, logprobs: _Optional[_Union[Tensor, _Mapping]] = ..., topk_ids: _Optional[_Union[Tensor, _Mapping]] = ..., topk_logprobs: _Optional[_Union[Tensor, _Mapping]] = ..., tail_logprobs: _Optional[_Union[Tensor, _Mapping]] = ..., model: _Optional[str] = ..., dialect: _Optional[str] = ..., temperature: _Optional[float] = ..., num_prompt_tokens: _Optional[int] = ..., num_response_tokens: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ScoreStreamRequest(_message.Message):
    __slots__ = ("sequences", "part_tokens")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PART_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[ScoreRequest]
    part_tokens: int
    def __init__(self, sequences: _Optional[_Iterable[_Union[ScoreRequest, _Mapping]]] = ..., part_tokens: _Optional[int] = ...) -> None: ...

class ScorePart(_message.Message):
    __slots__ = ("sequence", "start", "reply", "last", "status", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    start: int
    reply: ScoreReply
    last: bool
    status: str
    message: str
    def __init__(self, sequence: _Optional[int] = ..., start: _Optional[int] = ..., reply: _Optional[_Union[ScoreReply, _Mapping]] = ..., last: _Optional[bool] = ..., status: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
