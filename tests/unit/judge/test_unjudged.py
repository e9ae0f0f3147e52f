"""Timeouts, disconnects and interruptions never reach a backend, whichever it is."""

import time
from typing import Any

import pytest
from hintloop_judge.conversation import Exchange
from hintloop_judge.unjudged import is_notice, is_unjudged_output, judgeable

NOTICES = [
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    "Error: Request timed out.",
    "API Error: Request timed out.",
    "API Error: Connection error.",
    "Request was aborted.",
    "The connection was closed unexpectedly",
    "Connection reset by peer",
    "Operation cancelled by user.",
    "timed out",
    "Error: 504 Gateway Timeout",
    "Stream disconnected",
    "read ECONNRESET",
    "TypeError: fetch failed".removeprefix("TypeError: "),
    "openai.APITimeoutError: Request timed out.",
    "AbortError: The user aborted a request.",
    "请求超时。",
    "[请求已被用户中断]",
    "错误\uff1a连接已断开\uff0c请稍后重试",
    "用户已取消",
]
WORDS = [
    "Why does my request time out after 5 seconds? Use a longer timeout next time.",
    "My request timed out because your code has no retry, that is wrong.",
    "What is a timeout?",
    "I was interrupted. What is rain?",
    "The connection in your diagram is wrong.",
    "Too long.",
    "Error: you forgot the header",
    "Reset the counter.",
    "Lost",
    "我的请求总是超时\uff0c怎么办\uff1f",
    "取消第二步。",
    "请中断连接。",
    "[Request interrupted by user]\nNo, use the staging server.",
]
OUTPUTS = [
    "Command timed out after 60 s",
    "Error: command timed out after 120 seconds",
    "npm test timed out after 2m",
    "partial output\nmore\neven more\nlast\nCommand timed out after 2m 0s".replace("2m 0s", "120s"),
    "[Request interrupted by user for tool use]",
    "Tool call rejected by the user.",
    "The user doesn't want to proceed with this tool use. The tool use was rejected.",
    "TimeoutError: page.goto: Timeout 30000ms exceeded.",
    "requests.exceptions.ReadTimeout: read timed out",
    '{"stdout": "", "interrupted": true}',
    '{"error": "Request timed out"}',
]
JUDGED_OUTPUTS = [
    "def get(url, timeout=30):\n    return open(url, timeout)",
    '{"timeout": 30, "count": 2}',
    '{"stdout": "ok", "interrupted": false}',
    "# Timeouts\nThe request is sent again when it timed out, or was cancelled.\nThen the error is shown.",
    "timeout: 30\nretries: 2",
    "Error: file not found",
    "exit code 1",
]


@pytest.mark.parametrize("text", NOTICES)
def test_notices(text: str) -> None:
    assert is_notice(text)


@pytest.mark.parametrize("text", WORDS)
def test_words_about_them_are_judged(text: str) -> None:
    assert not is_notice(text)


@pytest.mark.parametrize("text", OUTPUTS)
def test_runs_that_did_not_end(text: str) -> None:
    assert is_unjudged_output(text)


@pytest.mark.parametrize("text", JUDGED_OUTPUTS)
def test_output_that_mentions_them_is_judged(text: str) -> None:
    assert not is_unjudged_output(text)


def exchange(*next_state: dict[str, Any]) -> Exchange:
    return Exchange(({"role": "user", "content": "go"},), {"role": "assistant", "content": "done"}, next_state)


def test_only_what_can_be_judged_is_left() -> None:
    words = {"role": "user", "content": "No, in French."}
    cut = {"role": "tool", "tool_call_id": "a", "content": "Command timed out after 60 s"}
    ran = {"role": "tool", "tool_call_id": "b", "content": "Error: no"}
    stopped = {"role": "user", "content": [{"type": "text", "text": "[Request interrupted by user]"}]}
    assert judgeable(exchange(cut)) is None
    assert judgeable(exchange(stopped)) is None
    assert judgeable(exchange()) is None
    left = judgeable(exchange(cut, ran, stopped, words))
    assert left is not None and left.next_state == (ran, words)
    whole = exchange(ran, words)
    assert judgeable(whole) is whole


def test_tool_results_inside_a_user_message() -> None:
    def part(name: str, text: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": name, "content": text}

    cut, ran = part("a", "Command timed out after 60 s"), part("b", "ok")
    assert judgeable(exchange({"role": "user", "content": [cut]})) is None
    left = judgeable(exchange({"role": "user", "content": [cut, ran]}))
    assert left is not None and left.next_state == ({"role": "user", "content": [ran]},)
    stop = {"type": "text", "text": "[Request interrupted by user]"}
    left = judgeable(exchange({"role": "user", "content": [ran, stop]}))
    assert left is not None and left.next_state == ({"role": "user", "content": [ran]},)


@pytest.mark.parametrize("piece", ["request ", "error ", "a ", "api error: ", ".", "A.", " by user"])
def test_long_text_is_read_in_little_time(piece: str) -> None:
    started = time.process_time()
    for length in (290, 100_000):
        text = (piece * length)[:length]
        is_notice(text)
        is_unjudged_output(text)
    assert time.process_time() - started < 1
