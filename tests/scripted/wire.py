"""A scripted answer as bytes: bodies and events of every API, with what the way from an engine does wrong."""

from __future__ import annotations

import json
from typing import Any

from . import shapes, text_shapes
from .answers import Fault, Given

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
DONE = b"data: [DONE]\n\n"
GARBAGE = b'data: {"id": "x", "choices": [{\n\n'
ERROR = b'data: {"error":{"message":"out of memory","type":"InternalServerError","param":null,"code":500}}\n\n'

Json = dict[str, Any]


def body_of(kind: str, path: str, given: Given, asked: Json) -> bytes:
    """A whole answer."""
    if path == GENERATE:
        return dump(text_shapes.generate_body(given, asked))
    write = shapes.body if path == CHAT else text_shapes.completion_body
    return dump(write(kind, given, asked))


def events_of(kind: str, path: str, given: Given, asked: Json) -> list[bytes]:
    """The events of a streamed answer to ``asked``, with their faults; empty where that client gets none."""
    if path == GENERATE:
        chunks = text_shapes.generate_chunks(given)
    else:
        chunks = shapes.chunks(kind, given) if path == CHAT else text_shapes.completion_chunks(kind, given)
    documents = [chunk(asked) for chunk in chunks]
    found = [b"" if document is None else b"data: " + dump(document) + b"\n\n" for document in documents]
    struck = min(int(given.at * len(found)), len(found) - 1)
    match given.fault:
        case Fault.DUPLICATED_CHUNK:
            return [*found[:struck], found[struck], *found[struck:], DONE]
        case Fault.LOST_CHUNK:
            return [*found[:struck], b"", *found[struck + 1 :], DONE]
        case Fault.GARBAGE_CHUNK:
            return [*found[:struck], GARBAGE, *found[struck:], DONE]
        case Fault.ERROR_CHUNK:
            return [*found[:struck], ERROR, DONE]
    return [*found, DONE]


def cut(data: bytes, given: Given) -> bytes:
    """What is left of it when it is cut."""
    return data[: int(given.at * len(data))]


def dump(document: Any) -> bytes:
    """JSON in the engines' layout."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
