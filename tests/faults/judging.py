"""A judge's chat endpoint as OpenAI-compatible servers are: real HTTP, keys, models, token limits; scripted words.

It reads what followed the answer and gives the advice that fits. ``habits`` are what a fault makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from .background import Background

_FOLLOWED = re.compile(r"=== WHAT FOLLOWED \w+\n(.*?)\n=== END OF WHAT FOLLOWED", re.DOTALL)
#: What is advised, by a word that followed; the first that is found.
ADVICE = (
    ("filenotfound", "Check that the file exists before opening it, and say so when it does not."),
    ("no such file", "Check that the file exists before opening it, and say so when it does not."),
    ("error", "Read the error that the tool gave back and correct the call that caused it."),
    ("traceback", "Read the error that the tool gave back and correct the call that caused it."),
    ("short", "Answer in one short sentence of at most ten words."),
    ("long", "Answer in one short sentence of at most ten words."),
    ("list", "Write the answer as a numbered list with one item a line."),
    ("table", "Write the answer as a table with one row for each item."),
    ("german", "Write the whole answer in German."),
    ("french", "Write the whole answer in French."),
    ("metric", "Give every length in metres and every weight in kilograms."),
    ("example", "Add one worked example with numbers."),
)
CORRECTIONS = ("wrong", "instead", "should", "not what")
WELCOME = ("thank", "perfect", "great", "exactly", "passed")


@dataclass(frozen=True, slots=True)
class Habits:
    """How the endpoint behaves."""

    models: tuple[str, ...] = ("judge-large",)
    key: str = "the-judges-key"
    refusal: int = 401
    """Status with which a wrong key is refused."""
    unknown_model: int = 404
    """Status with which a model that is not served is refused."""
    hint: str | None = None
    """The one hint that is given whatever followed; ``None``: the advice that fits."""
    reply: str | None = None
    """The whole reply to a question for a hint, as it is."""
    thinks: int = 0
    """Words that are written before the reply."""
    takes_schema: bool = False


@dataclass
class ScriptedJudge:
    """The endpoint; a context manager. ``num_asked`` counts questions."""

    background: Background
    habits: Habits = field(default_factory=Habits)
    url: str = ""
    num_asked: int = 0
    _runner: web.AppRunner | None = None

    def __enter__(self) -> ScriptedJudge:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        self.url, self._runner = self.background.serve(app)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._runner is not None
        self.background.end(self._runner)

    @contextmanager
    def behaving(self, **habits: Any) -> Iterator[None]:
        """Have these habits meanwhile."""
        before, self.habits = self.habits, replace(self.habits, **habits)
        try:
            yield
        finally:
            self.habits = before

    def _refused(self, request: web.Request) -> web.Response | None:
        if request.headers.get("authorization") == f"Bearer {self.habits.key}":
            return None
        return error(self.habits.refusal, "Incorrect API key provided.", "invalid_api_key")

    async def _models(self, request: web.Request) -> web.Response:
        rows = [{"id": name, "object": "model", "owned_by": "x"} for name in self.habits.models]
        return self._refused(request) or web.json_response({"object": "list", "data": rows})

    async def _complete(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        asked = await request.json()
        self.num_asked += 1
        model = asked.get("model")
        if model not in self.habits.models:
            return error(self.habits.unknown_model, f"The model `{model}` does not exist.", "model_not_found")
        schema = "response_format" in asked
        if schema and not self.habits.takes_schema:
            return error(400, "response_format is not supported", "invalid_request_error")
        text = self._words(asked["messages"][-1]["content"], schema=schema)
        return web.json_response(completion(model, text, asked))

    def _words(self, prompt: str, *, schema: bool) -> str:
        thought = "Let me think about what followed. " * (self.habits.thinks // 6)
        found = _FOLLOWED.search(prompt)
        followed = found.group(1) if found else ""
        is_hint = "[HINT_START]" in prompt or '{"hint"' in prompt
        if not found and not is_hint:
            return '{"score": 0}' if schema else "OK"
        if not is_hint:
            score = score_of(followed)
            return thought + (f'{{"score": {score}}}' if schema else f"\\boxed{{{score:+d}}}".replace("+0", "0"))
        if self.habits.reply is not None:
            return thought + self.habits.reply
        hint = self.habits.hint or advice(followed)
        return thought + ("[NO_HINT]" if hint is None else f"[HINT_START]{hint}[HINT_END]")


def advice(followed: str) -> str | None:
    """The hint that fits what followed, or ``None``."""
    lowered = followed.lower()
    for word, hint in ADVICE:
        if word in lowered:
            return hint
    if any(word in lowered for word in CORRECTIONS):
        said = " ".join(followed.partition("\n")[2].split())[:180]
        return f"Take into account what the user corrects: {said}"
    return None


def score_of(followed: str) -> int:
    """-1 for a complaint or an error, +1 for thanks, else 0."""
    lowered = followed.lower()
    if any(word in lowered for word in WELCOME):
        return 1
    return -1 if advice(followed) else 0


def completion(model: str, text: str, asked: dict[str, Any]) -> dict[str, Any]:
    """A chat completion of ``text``, cut where the request's limit is; a word counts as a token and a third."""
    limit = int(asked.get("max_tokens") or 10_000)
    words = re.findall(r"\s*\S+", text)
    most = int(limit * 0.75)
    cut = len(words) > most
    said = "".join(words[:most]) if cut else text
    choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "length" if cut else "stop"}
    choices = [{"index": index, **choice} for index in range(int(asked.get("n") or 1))]
    usage = {"prompt_tokens": 1, "completion_tokens": min(limit, len(words)), "total_tokens": 1}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": model, "choices": choices, "usage": usage}


def error(status: int, message: str, code: str) -> web.Response:
    """An error as OpenAI writes it."""
    return web.json_response({"error": {"message": message, "code": code, "type": code}}, status=status)
