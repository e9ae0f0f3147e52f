"""The translated APIs by path, as `serving` looks them up."""

from __future__ import annotations

from hintloop_rollout_proxy.apis import messages, responses
from hintloop_rollout_proxy.apis.response_store import ResponseStore
from hintloop_rollout_proxy.apis.translation import TranslatedApi


def translated_apis(store: ResponseStore) -> dict[str, TranslatedApi]:
    """Every translated API; answers that agents may refer to are remembered in ``store``."""
    openai, anthropic = responses.ResponsesApi(store), messages.MessagesApi()
    return {
        responses.PATH: TranslatedApi("responses", openai.translate, openai.finish),
        messages.PATH: TranslatedApi("messages", anthropic.translate),
    }
