"""Explicit feedback: what somebody says about a turn is its next state. Owns which turn is meant; judges nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hintloop_contract.messages import Capture, DropReason

from hintloop_rollout_proxy.linking.board import Board
from hintloop_rollout_proxy.linking.nodes import Node


class _Feedback(msgspec.Struct):
    response_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    score: float | None = None
    text: str | None = None


_decoder = msgspec.json.Decoder(_Feedback)


def give_feedback(board: Board, capture: Capture) -> None:
    """Settle the turn that feedback names, or the newest open one of the session that it names."""
    try:
        feedback = _decoder.decode(capture.request)
    except msgspec.DecodeError as error:
        board.refuse(capture.turn_id, DropReason.FEEDBACK, f"unreadable: {error}")
        return
    if feedback.score is None and not feedback.text:
        board.refuse(capture.turn_id, DropReason.FEEDBACK, "it has neither score nor text")
        return
    node = _find(board, capture.tenant, feedback)
    if node is None:
        board.refuse(capture.turn_id, DropReason.FEEDBACK, f"no open turn for {_name(feedback)}")
        return
    next_state = b"[]"
    if feedback.text:
        next_state = msgspec.json.encode([{"role": "user", "content": feedback.text}])
    elif node.next is not None:
        next_state = node.next.next_state
    board.settle_with(node, next_state, capture.turn_id, _sign(feedback.score))
    board.refuse(capture.turn_id, DropReason.FEEDBACK, f"given to turn {node.turn_id}")


def _find(board: Board, tenant: str, feedback: _Feedback) -> Node | None:
    if feedback.turn_id is not None:
        node = board.index.get(feedback.turn_id)
        found = [] if node is None or node.scope[0] != tenant else [node]
    elif feedback.response_id is not None:
        found = board.index.at((tenant, ""), "response", feedback.response_id)
    elif feedback.session_id is not None:
        session = board.sessions.get(feedback.session_id)
        own = [] if session is None else [node for node in session.nodes[::-1] if node.scope[0] == tenant]
        found = own or board.index.at((tenant, ""), "named", feedback.session_id)
    else:
        found = []
    return next((node for node in found if node.whole and not node.settled and not node.side), None)


def _name(feedback: _Feedback) -> str:
    members: list[tuple[str, Any]] = [
        ("turn_id", feedback.turn_id),
        ("response_id", feedback.response_id),
        ("session_id", feedback.session_id),
    ]
    return next((f"{name} {value[:80]!r}" for name, value in members if value is not None), "no id at all")


def _sign(score: float | None) -> int | None:
    return None if score is None else (score > 0) - (score < 0)
