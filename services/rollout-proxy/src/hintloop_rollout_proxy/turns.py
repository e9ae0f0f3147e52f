"""Builds the messages that leave the linker: a turn and its record, from a capture and its link."""

from __future__ import annotations

import msgspec
from hintloop_contract.config.schema import TrainingSection
from hintloop_contract.messages import Capture, DropReason, LinkedTurn, TurnRecord

from hintloop_rollout_proxy.linking import Link
from hintloop_rollout_proxy.problems import Problem

#: Members of a request, besides messages and tools, that shape how an engine renders its prompt.
RENDERING_MEMBERS = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include_reasoning",
    "mm_processor_kwargs",
    "parallel_tool_calls",
    "reasoning_effort",
    "separate_reasoning",
    "tool_choice",
)
#: Where the APIs without messages hold their prompt.
PROMPT_MEMBERS = ("prompt", "text")
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def find_obstacle(capture: Capture, link: Link, training: TrainingSection) -> Problem | None:
    """Why a linked turn is dropped all the same, or ``None``."""
    missing = [
        name
        for name in ("answer", "prompt_ids", "response_ids", "logprobs", "version_oldest", "version_newest")
        if getattr(capture, name) is None
    ]
    if missing:
        return DropReason.NOT_TRAINABLE, f"the capture lacks {', '.join(missing)}"
    if link.next_state == b"[]" and link.score is None:
        return DropReason.NO_NEXT_STATE, "no words follow the answer: nothing, white space, or token ids alone"
    if capture.version_oldest != capture.version_newest and not training.allow_mixed_version:
        versions = f"weights {capture.version_oldest} to {capture.version_newest}"
        return DropReason.MIXED_VERSION, f"{versions}; training.allow_mixed_version is false"
    if capture.sampling.constrained and not training.allow_constrained:
        why = "; the engine's sampling defaults are not known" if capture.sampling.defaults_unknown else ""
        return DropReason.CONSTRAINED, f"training.allow_constrained is false{why}"
    return None


def linked_turn(capture: Capture, link: Link, now_ms: int) -> LinkedTurn:
    """The turn's message; ``find_obstacle`` found nothing."""
    assert capture.version_oldest is not None and capture.version_newest is not None
    assert capture.prompt_ids is not None and capture.response_ids is not None
    return LinkedTurn(
        turn_id=capture.turn_id,
        tenant=capture.tenant,
        session_id=link.session_id,
        turn_index=link.turn_index,
        api=capture.api,
        engine=capture.engine,
        engine_url=capture.engine_url,
        behaviour_space=capture.behaviour_space,
        sampling=capture.sampling,
        finish_reason=capture.finish_reason,
        version_oldest=capture.version_oldest,
        version_newest=capture.version_newest,
        spans=capture.spans,
        num_prompt_tokens=len(capture.prompt_ids),
        num_response_tokens=len(capture.response_ids),
        captured_ms=capture.end_ms,
        linked_ms=now_ms,
        segment=link.segment,
        feedback_score=link.score,
    )


def turn_record(capture: Capture, link: Link) -> TurnRecord:
    """What the turn consists of; ``find_obstacle`` found nothing."""
    assert capture.answer is not None and capture.prompt_ids is not None
    assert capture.response_ids is not None and capture.logprobs is not None
    fields = _fields_decoder.decode(capture.chat_request or capture.request)
    tools = bytes(fields["tools"]) if "tools" in fields else b"null"
    return TurnRecord(
        turn_id=capture.turn_id,
        messages=_messages(fields),
        tools=None if tools in (b"null", b"[]") else tools,
        rendering=msgspec.json.encode({name: fields[name] for name in RENDERING_MEMBERS if name in fields}),
        answer=capture.answer,
        next_state=link.next_state,
        prompt_ids=capture.prompt_ids,
        response_ids=capture.response_ids,
        logprobs=capture.logprobs,
    )


def _messages(fields: dict[str, msgspec.Raw]) -> bytes:
    """The messages of a chat request; a prompt without messages is one user's text, ids alone have none."""
    if "messages" in fields:
        return bytes(fields["messages"])
    for name in PROMPT_MEMBERS:
        prompt = msgspec.json.decode(fields[name]) if name in fields else None
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if isinstance(prompt, str):
            return msgspec.json.encode([{"role": "user", "content": prompt}])
    return b"[]"
