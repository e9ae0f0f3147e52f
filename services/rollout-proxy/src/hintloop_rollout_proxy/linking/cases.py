"""Reads recorded request sequences: case files, and exported capture logs. Owns their formats and their errors.

A case is ``{"name", "requests": [{"path", "headers", "body", "reply"}]}``; a log has one capture a line, as JSON.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Annotated, Any

import msgspec
from hintloop_contract.messages import Capture
from hintloop_contract.tensors import pack

from hintloop_rollout_proxy.kept_headers import identity_headers

#: APIs by the path that a request was sent to.
APIS = {
    "/v1/chat/completions": "chat_completions",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/generate": "generate",
}
#: Between requests of a case that gives no times.
STEP_MS = 1_000
ANSWER_MS = 100


class CaseError(ValueError):
    """A file is no case and no capture log; the message says where and why."""


_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Call(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: Any = ""


class _Reply(msgspec.Struct):
    status: int = 200
    complete: bool = True
    text: str | None = None
    calls: list[_Call] = msgspec.field(default_factory=list)
    id: str | None = None
    delivered: str | None = None
    token_ids: list[_TokenId] | None = None
    output_ids: list[_TokenId] | None = None


class _Request(msgspec.Struct):
    path: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    reply: _Reply = msgspec.field(default_factory=_Reply)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None


class _Case(msgspec.Struct):
    requests: list[_Request]
    name: str | None = None


def read_file(path: Path) -> tuple[str, list[Capture]]:
    """Name and captures of a case file or a capture log.

    Raises:
        CaseError: it is neither, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CaseError(error.strerror or str(error)) from None
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise CaseError("it is empty; give a case file, or a capture log (linker.capture_log)")
    try:
        return read_case(data, path.stem)
    except CaseError as error:
        if path.suffix == ".json":
            raise
        try:
            return path.stem, read_log(data)
        except CaseError as second:
            raise CaseError(f"no case file ({error}) and no capture log ({second})") from None


def read_case(data: bytes, name: str) -> tuple[str, list[Capture]]:
    """Name (``name`` when it has none) and captures of a case."""
    try:
        case = msgspec.json.decode(data, type=_Case)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CaseError(str(error)) from None
    captures, clock = [], STEP_MS
    for number, request in enumerate(case.requests):
        capture = _capture_of(request, number, clock)
        clock = max(clock, capture.end_ms) + STEP_MS - ANSWER_MS
        captures.append(capture)
    return case.name or name, captures


def read_log(data: bytes) -> list[Capture]:
    """Captures of a log."""
    captures: dict[str, Capture] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            capture = msgspec.json.decode(line, type=Capture)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CaseError(f"line {number}: {error}") from None
        if capture.turn_id in captures:
            raise CaseError(f"line {number}: turn_id {capture.turn_id[:80]!r} is there a second time")
        captures[capture.turn_id] = capture
    if not captures:
        raise CaseError("it holds no capture")
    return list(captures.values())


def _capture_of(request: _Request, number: int, clock: int) -> Capture:
    path = request.path.split("?", 1)[0].rstrip("/")
    # What generates nothing (a list of models, a health check) is no turn; it keeps its place in the numbering.
    api = APIS.get(path, path)
    if path in APIS and bytes(request.body) == b"null":
        raise CaseError(f"requests[{number}].body is missing; give the JSON object that was sent to {path}")
    start_ms = clock if request.start_ms is None else request.start_ms
    end_ms = start_ms + ANSWER_MS if request.end_ms is None else request.end_ms
    if end_ms < start_ms:
        raise CaseError(f"requests[{number}].end_ms {end_ms} is before its start_ms {start_ms}")
    reply = request.reply
    ids = reply.token_ids if reply.token_ids is not None else reply.output_ids
    refused = reply.status >= 400
    status = "refused" if refused else "complete" if reply.complete else "aborted"
    headers = {name.lower(): value for name, value in request.headers.items()}
    credential = headers.get("authorization") or headers.get("x-api-key") or ""
    return Capture(
        turn_id=f"{number}",
        credential=credential,
        identity=identity_headers({n.encode(): v.encode("latin-1", "replace") for n, v in headers.items()}),
        api=api,
        engine="recorded",
        engine_url="",
        request=bytes(request.body),
        answer=None if refused else _answer(reply),
        response_id=reply.id,
        status=status,
        http_status=reply.status,
        start_ms=start_ms,
        end_ms=end_ms,
        turn_type=headers.get("x-turn-type"),
        session_done=headers.get("x-session-done", "").lower() in ("1", "true", "yes"),
        problem={"refused": "upstream_error", "aborted": "aborted"}.get(status),
        response_ids=None if ids is None else pack(ids, "int32"),
    )


def _answer(reply: _Reply) -> bytes:
    text = reply.delivered if not reply.complete and reply.delivered is not None else reply.text
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return msgspec.json.encode(message)
