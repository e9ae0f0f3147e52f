"""What the scripted engine says to the stock clients: tools first, then words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.scripted.answers import Call, Scripted

Script = Callable[[dict[str, Any]], Scripted]


def _last(asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = asked["messages"][-1]
    return message


def _words(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def weather() -> Script:
    """Two calls at once for the first question, then a sentence for whatever comes."""
    numbers = itertools.count(1)

    def call(city: str) -> Call:
        return Call("get_weather", json.dumps({"city": city}), f"call{next(numbers):012d}")

    def script(asked: dict[str, Any]) -> Scripted:
        last = _last(asked)
        if last["role"] == "user" and "weather" in _words(last):
            return Scripted("Let me look.", "Two cities.", (call("Paris"), call("Rome")))
        return Scripted(f"Answer {next(numbers)}: sunny everywhere.")

    return script


def smolagents_tools() -> Script:
    """One call of the weather tool, then the library's own ``final_answer``."""
    numbers = itertools.count(1)

    def script(asked: dict[str, Any]) -> Scripted:
        observed = "sunny in" in _words(_last(asked))
        name, arguments = ("final_answer", {"answer": "sunny"}) if observed else ("get_weather", {"city": "Paris"})
        return Scripted(calls=(Call(name, json.dumps(arguments), f"call{next(numbers):012d}"),))

    return script


def smolagents_code() -> Script:
    """Python in the library's own fences: a print, then the final answer."""
    numbers = itertools.count(1)

    def script(asked: dict[str, Any]) -> Scripted:
        number = next(numbers)
        code = "final_answer('sunny')" if "sunny in" in _words(_last(asked)) else "print(get_weather('Paris'))"
        return Scripted(f"Thought {number}: I go on.\n<code>\n{code}\n</code>")

    return script


def shell() -> Script:
    """An answer without a command (which the agent does not echo), two commands, and the agent's own ending."""
    commands = iter((None, "echo done > out.txt", "cat out.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))
    numbers = itertools.count(1)

    def script(asked: dict[str, Any]) -> Scripted:
        command, number = next(commands), next(numbers)
        if command is None:
            return Scripted("I think about it.")
        call = Call("bash", json.dumps({"command": command}), f"call{number:012d}")
        return Scripted(f"Step {number}.", calls=(call,))

    return script
