"""What says nothing about an answer: timeouts, disconnects and interruptions. Left out before any backend looks.

A user's message counts as one only as a whole; a tool's output where a line of it, near the beginning or the end,
says so about the run. What a tool shows besides is left to the backends.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hintloop_judge.conversation import TOOL_ROLES, USER_ROLES, Exchange, Message, message_text, tool_results
from hintloop_judge.rules_patterns import words

#: A notice is made of these words alone (and numbers), and holds one that says how it ended.
_ENDED = words("timeout timedout interrupted aborted canceled cancelled disconnected")
_BROKEN = words("closed reset lost refused dropped terminated error failed")
_LINKS = words("connection network socket stream gateway")
_SUBJECTS = words(
    """request connection response stream command operation call server session generation tool use message answer
    reply turn model api http gateway read connect network process execution task socket llm upstream client"""
)
_REST = words(
    """error warning the your my this a was has been is got had by user peer host caller unexpectedly prematurely for
    after in while s sec secs second seconds m min minute minutes ms h hour hours out timed time rejected denied
    waiting running streaming"""
)
_MAX_NOTICE = 300
_WORD = re.compile(r"[a-z']+|\d+")
_SYSTEM_ERROR = re.compile(r"\b(?:ECONNRESET|ECONNREFUSED|ETIMEDOUT|EPIPE)\b")
_RAISED = re.compile(
    r"(?:[\w.]{0,80}(?:Timeout|TimedOut|Abort|Cancel|Disconnect)\w{0,40}(?:Error|Exception)|[\w.]{0,80}Timeout):"
)
_SETTING = re.compile(r"[\w.-]*\s*[:=]\s*[\d.]+\s*\w{0,2}$")
_REFUSED_USE = re.compile(r"the user doesn't want to (?:proceed|take this action)\b")
_BY_USER = re.compile(r"\b(?:interrupted|cancel+ed|aborted|rejected|denied) by (?:the )?user\b")
_RUN_TIMED_OUT = re.compile(r"\btimed out(?: (?:after|in) [\d.]+ ?\w{0,10}| waiting\b.{0,60})?\W{0,5}$")
_CHINESE_NOTICE = re.compile(
    r"\W*(?:错误|提示|系统)?\W*(?:api|本次)?(?:请求|连接|操作|命令|生成|任务|回答|网络|执行|工具调用)?(?:已经?)?(?:被用户|用户已?|被)?"
    r"(?:超时|中断|取消|断开|终止|中止)(?:了|连接)?\W*(?:请稍后)?(?:再试|重试)?\W*"
)
_FLAGS = ("timed_out", "timedOut", "timeout", "interrupted", "cancelled", "canceled", "aborted")
_MESSAGES = ("error", "message", "detail", "stderr", "status")


def judgeable(exchange: Exchange) -> Exchange | None:
    """The exchange without what is never judged, or ``None`` when nothing a judge could go by is left."""
    kept = tuple(left for message in exchange.next_state if (left := _left_of(message)) is not None)
    rest = exchange if kept == exchange.next_state else replace(exchange, next_state=kept)
    return rest if has_reaction(rest) else None


def has_reaction(exchange: Exchange) -> bool:
    """Whether anything that can be judged came after the answer."""
    spoken = any(m.get("role") not in ("system", "developer") and message_text(m).strip() for m in exchange.next_state)
    return spoken or any(result.text.strip() or result.is_error for result in tool_results(exchange.next_state))


def is_notice(text: str) -> bool:
    """Whether a user's message, as a whole, reports a timeout, a disconnect or an interruption."""
    shown = text.strip()
    if not shown or len(shown) > _MAX_NOTICE or "?" in shown:
        return False
    if _RAISED.match(shown) and "\n" not in shown:
        return True
    lowered = shown.lower()
    if _CHINESE_NOTICE.fullmatch(lowered):
        return True
    if _REFUSED_USE.match(lowered) or lowered.rstrip(".! ") in ("fetch failed", "socket hang up"):
        return True
    if _SYSTEM_ERROR.search(shown):
        return len(lowered.split()) <= 6
    return _only_says_it_ended(_WORD.findall(lowered))


def _only_says_it_ended(said: list[str]) -> bool:
    """Every word belongs to a notice, and one says that something ended before its time."""
    known = _ENDED | _BROKEN | _SUBJECTS | _REST
    if not all(word.isdigit() or word in known for word in said):
        return False
    if not _ENDED.isdisjoint(said) or ("timed", "out") in pairwise(said):
        return True
    return not _LINKS.isdisjoint(said) and not _BROKEN.isdisjoint(said)


def is_unjudged_output(text: str) -> bool:
    """Whether a tool's output says that its run timed out or was interrupted."""
    if text.lstrip().startswith("{"):
        try:
            return _flagged(json.loads(text))
        except (ValueError, RecursionError):
            pass
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    edges = lines if len(lines) <= 4 else [*lines[:2], *lines[-2:]]
    return any(_reports_end(line) for line in edges if len(line) <= _MAX_NOTICE)


def _reports_end(line: str) -> bool:
    if _SETTING.match(line):
        return False
    if is_notice(line):
        return True
    lowered = line.lower()
    return bool(_BY_USER.search(lowered)) or (bool(_RUN_TIMED_OUT.search(lowered)) and len(lowered.split()) <= 12)


def _flagged(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if any(value.get(key) is True for key in _FLAGS):
        return True
    return any(isinstance(text := value.get(key), str) and is_notice(text) for key in _MESSAGES)


def _left_of(message: Message) -> Message | None:
    """The message, or what is left of it; ``None`` when it is never judged."""
    role = message.get("role")
    if role in TOOL_ROLES:
        return None if is_unjudged_output(message_text(message)) else message
    if role not in USER_ROLES:
        return message
    if is_notice(message_text(message)):
        message = {**message, "content": _tool_parts(message)}
    content = message.get("content")
    if not isinstance(content, list):
        return message
    left = [part for part in content if not _unjudged_part(part)]
    if not left:
        return None
    return message if len(left) == len(content) else {**message, "content": left}


def _tool_parts(message: Message) -> list[Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_result"]


def _unjudged_part(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("type") != "tool_result":
        return False
    return is_unjudged_output(message_text(part))
