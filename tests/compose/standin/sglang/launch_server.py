"""`python3 -m sglang.launch_server` as the shipped compose file starts it, answering in SGLang's recorded wire shapes.

Its tokens are characters of ASCII and its distribution is fixed; new weights change what it says of the probe, which
it reads beside the weights in the folder that both it and the trainer see.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.scripted import shapes, wire
from tests.scripted.answers import END_ID, END_TEXT, Given, Scripted, Sent, Spoken, Token
from tests.scripted.engine import ScriptedEngine
from tests.scripted.scoring_engine import SIZE, WireEngine, rendered, score_of

CONTEXT = 8192
NOTE = "hintloop_release.json"
Json = dict[str, Any]


class StandIn:
    """One server: answers chats, scores given tokens, takes new weights."""

    def __init__(self, model: Path, name: str) -> None:
        """Serve the weights of ``model`` under ``name``."""
        self._model = model
        self._name = name
        self._version = "default"
        self._chat = ScriptedEngine("sglang", lambda asked: Scripted(""))
        self._scores = WireEngine("sglang", max_top_k=SIZE, context=CONTEXT)
        shapes.versions_of = self._versions  # type: ignore[assignment]

    def _versions(self, spoken: Spoken) -> Json:
        spans = [{"version": self._version, "start": 0, "end": len(spoken.tokens)}]
        return {"weight_version": self._version, "weight_versions": spans}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Say something that depends on all that was said."""
        asked = await request.json()
        for kind in ("input", "output"):
            if request.headers.get(f"x-sglext-return-{kind}-ids") == "1":
                asked[f"return_{kind}_ids_in_sglext"] = True
        prompt = rendered(asked["messages"])
        ids = [ord(char) for char in prompt]
        said = Scripted(f"Noted, that makes {zlib.crc32(prompt.encode()) % 10_000}.")
        return await self._chat.answer(request, asked, self._given(asked, ids, said))

    def _given(self, asked: Json, ids: list[int], said: Scripted) -> Given:
        base = self._chat.give(wire.CHAT, asked, said).choices[0]
        tokens, before = [], ids[-1]
        for char in said.content:
            tokens.append(Token(char, "content", ord(char), score_of(before, ord(char))))
            before = ord(char)
        tokens.append(Token(END_TEXT, "", END_ID, score_of(before, END_ID), end=True))
        sent = tuple(Sent(token, (token.id,), (token.logprob,)) for token in tokens)
        return Given(self._name, tuple(ids), (Spoken(said, tuple(tokens), sent, base.response_id),))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Scores of given tokens; of the probe, what the weights' note says of it."""
        asked = await request.json()
        if "text" in asked:
            return await self._chat._generate(request)
        note = self._note()
        if note is not None and asked["input_ids"] == note["probe_ids"]:
            pairs = zip([None, *note["probe_scores"]], note["probe_ids"], strict=True)
            return web.json_response(
                {"meta_info": {"input_token_logprobs": [[value, token, None] for value, token in pairs]}}
            )
        answer = self._scores._sglang_post(wire.GENERATE, asked)
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    def _note(self) -> Json | None:
        file = self._model / NOTE
        return json.loads(file.read_bytes()) if file.is_file() else None

    async def replace(self, request: web.Request) -> web.Response:
        """New weights from the shared volume."""
        asked = await request.json()
        directory = Path(asked["model_path"])
        if not (directory / "config.json").is_file():
            return web.json_response({"success": False, "message": f"no model in {directory}"}, status=400)
        self._model, self._version = directory, str(asked["weight_version"])
        return web.json_response({"success": True, "message": "Succeeded", "num_paused_requests": 0})

    async def info(self, request: web.Request) -> web.Response:
        """Which weights are served."""
        return web.json_response({"model_path": str(self._model), "weight_version": self._version})

    async def settings(self, request: web.Request) -> web.Response:
        """How the server was started."""
        found = {"version": "0.5.23", "sampling_defaults": "openai", "max_req_input_len": CONTEXT, "tp_size": 2}
        return web.json_response(found)

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        model = {"id": self._name, "object": "model", "created": 1, "owned_by": "x", "max_model_len": CONTEXT}
        return web.json_response({"object": "list", "data": [model]})

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/health", _ok)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/server_info", self.settings)
        app.router.add_get("/model_info", self.info)
        app.router.add_post(wire.CHAT, self.chat)
        app.router.add_post(wire.GENERATE, self.generate)
        app.router.add_post("/v1/tokenize", self._scores.handle)
        app.router.add_post("/pause_generation", _ok)
        app.router.add_post("/continue_generation", _ok)
        app.router.add_post("/update_weights_from_disk", self.replace)
        return app


async def _ok(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def main() -> None:
    """Serve as the vendor's command would, with the arguments that it knows."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model-path", "served-model-name", "host", "dtype", "tool-call-parser", "sampling-defaults"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "context-length", "tp-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--log-level")
    for name in ("skip-server-warmup", "sleep-on-idle", "enable-metrics"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    options = parser.parse_args()
    stand_in = StandIn(Path(options.model_path), options.served_model_name)
    web.run_app(stand_in.app(), host=options.host, port=options.port, access_log=None, print=None)


if __name__ == "__main__":
    main()
