from collections.abc import AsyncIterator
from typing import Any

import pytest
from hintloop_contract.errors import DependencyError
from hintloop_teacher.errors import NoHintPlaceError, RecordError, RenderMismatchError, UnsafeHintError
from hintloop_teacher.http import EngineClient, Patience
from hintloop_teacher.policy_engines import PolicyEngines
from hintloop_teacher.rendering import Renderer, Request, read_request

from .conftest import CodePoints, FakeEngine, render

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "ask"}]
GONE = "http://127.0.0.1:9"
TOOL = {"type": "function", "function": {"name": "f"}}


def connect(url: str) -> EngineClient:
    return EngineClient(url, dependency="policy-engine", patience=Patience(wait_s=0.01, circuit_failures=1000))


def renderer_of(*urls: str, engine: str = "vllm") -> Renderer:
    return Renderer(PolicyEngines(connect, urls, engine), CodePoints())


@pytest.fixture
async def renderer(policy: FakeEngine) -> AsyncIterator[Renderer]:
    renderer = renderer_of(policy.url)
    yield renderer
    await renderer.close()


@pytest.fixture
async def sglang_renderer(policy: FakeEngine) -> AsyncIterator[Renderer]:
    renderer = renderer_of(policy.url, engine="sglang")
    yield renderer
    await renderer.close()


def request_to(served: FakeEngine, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_url": served.url,
        "messages": MESSAGES,
        "tools": None,
        "options": {},
        "captured_ids": render(MESSAGES),
    }
    return Request(**{**values, **changes})


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


async def test_the_engine_renders_the_hint(policy: FakeEngine, renderer: Renderer) -> None:
    hinted = await renderer.hinted_ids(request_to(policy), "+H")
    assert text(hinted) == "<system>s;<user>ask+H;<assistant>"
    assert {path for path, _ in policy.requests} == {"/tokenize"}


@pytest.mark.parametrize(("engine", "path"), [("vllm", "/tokenize"), ("sglang", "/v1/tokenize")])
async def test_what_shapes_the_rendering_travels(
    policy: FakeEngine, renderer: Renderer, sglang_renderer: Renderer, engine: str, path: str
) -> None:
    renderer = sglang_renderer if engine == "sglang" else renderer
    options = {"chat_template_kwargs": {"x": 1}, "reasoning_effort": "low"}
    request = request_to(
        policy, engine=engine, tools=[TOOL], options=options, captured_ids=render(MESSAGES, tools=[TOOL])
    )
    assert text(await renderer.hinted_ids(request, "+H")) == "<T1><system>s;<user>ask+H;<assistant>"
    for found, body in policy.requests:
        assert found == path
        assert body["tools"] == [TOOL]
        if engine == "vllm":
            assert body["chat_template_kwargs"] == {"x": 1, "reasoning_effort": "low", "enable_thinking": True}
            assert body["add_generation_prompt"] is True
        else:
            assert body["chat_template_kwargs"] == {"x": 1}
            assert body["reasoning_effort"] == "low"
            # With it SGLang would not render as for a chat completion.
            assert "add_generation_prompt" not in body


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_rewritten_prompt_is_spliced(
    policy: FakeEngine, renderer: Renderer, sglang_renderer: Renderer, engine: str
) -> None:
    renderer = sglang_renderer if engine == "sglang" else renderer
    captured = render([{"role": "system", "content": "other"}, MESSAGES[1]])
    hinted = await renderer.hinted_ids(request_to(policy, engine=engine, captured_ids=captured), "+H")
    assert text(hinted) == "<system>other;<user>ask+H;<assistant>"


async def test_a_refused_rendering_is_no_rendering(policy: FakeEngine, renderer: Renderer) -> None:
    policy.status = 400
    with pytest.raises(RenderMismatchError, match="answered 400"):
        await renderer.hinted_ids(request_to(policy), "+H")


async def test_a_mismatch_without_a_place_is_dropped(policy: FakeEngine, renderer: Renderer) -> None:
    captured = render([MESSAGES[1], MESSAGES[1]])
    with pytest.raises(RenderMismatchError, match=r"they differ first at position 1; and no splice.*2 times"):
        await renderer.hinted_ids(request_to(policy, captured_ids=captured), "+H")


async def test_ids_without_messages_are_spliced_or_dropped(policy: FakeEngine, renderer: Renderer) -> None:
    request = request_to(policy, messages=[])
    assert text(await renderer.hinted_ids(request, "+H")) == "<system>s;<user>ask+H;<assistant>"
    with pytest.raises(NoHintPlaceError):
        await renderer.hinted_ids(request_to(policy, messages=[], captured_ids=[1, 2, 3]), "+H")


async def test_an_absent_engine_is_a_dependency(policy: FakeEngine, renderer: Renderer) -> None:
    policy.status = 503
    with pytest.raises(DependencyError, match="policy-engine"):
        await renderer.hinted_ids(request_to(policy), "+H")
    assert await renderer.ready()
    policy.status = 200
    gone = renderer_of(GONE)
    with pytest.raises(DependencyError, match="policy-engine"):
        await gone.hinted_ids(request_to(policy), "+H")
    assert not await gone.ready()
    await gone.close()


@pytest.mark.parametrize("served_at", [GONE, "http://127.0.0.1:10"])
async def test_another_engine_renders_when_the_turns_own_is_gone_or_unknown(policy: FakeEngine, served_at: str) -> None:
    renderer = renderer_of(GONE, policy.url)
    for _ in range(2):
        hinted = await renderer.hinted_ids(request_to(policy, engine_url=served_at), "+H")
        assert text(hinted) == "<system>s;<user>ask+H;<assistant>"
    assert await renderer.ready()
    await renderer.close()


async def test_the_turns_own_engine_is_preferred(policy: FakeEngine, other_policy: FakeEngine) -> None:
    renderer = renderer_of(policy.url, other_policy.url)
    await renderer.hinted_ids(request_to(other_policy, engine_url=other_policy.url + "/"), "+H")
    assert policy.requests == [] and len(other_policy.requests) == 2
    other_policy.status = 503
    await renderer.hinted_ids(request_to(other_policy), "+H")
    asked = len(other_policy.requests)
    await renderer.hinted_ids(request_to(other_policy), "+H")
    # What was just away is not asked again while another is there.
    assert (len(policy.requests), len(other_policy.requests)) == (4, asked)
    await renderer.close()


async def test_a_turn_of_another_dialect_is_dropped_not_waited_for(policy: FakeEngine, renderer: Renderer) -> None:
    with pytest.raises(RenderMismatchError, match=r"served by sglang.*are vllm"):
        await renderer.hinted_ids(request_to(policy, engine="sglang"), "+H")
    assert policy.requests == []


@pytest.mark.parametrize("changes", [{}, {"messages": []}, {"captured_ids": [1, 2, 3]}])
async def test_a_hint_with_a_control_token_is_refused(
    policy: FakeEngine, renderer: Renderer, changes: dict[str, Any]
) -> None:
    with pytest.raises(UnsafeHintError, match=r"<\|end\|>"):
        await renderer.hinted_ids(request_to(policy, **changes), "+Be brief<|end|>.")
    assert policy.requests == []


TOOLS_SPOKE = [
    *MESSAGES,
    {"role": "assistant", "content": "look"},
    {"role": "tool", "content": "out"},
]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("last_user", "<system>s;<user>ask+H;<assistant>look;<tool>out;<assistant>"),
        ("last_message", "<system>s;<user>ask;<assistant>look;<tool>out+H;<assistant>"),
    ],
)
@pytest.mark.parametrize("rewritten", [False, True])
async def test_the_place_is_configured_rendered_or_spliced(
    policy: FakeEngine, place: Any, expected: str, rewritten: bool
) -> None:
    renderer = Renderer(PolicyEngines(connect, [policy.url], "vllm"), CodePoints(), place)
    captured = render(TOOLS_SPOKE)
    if rewritten:
        captured = render([{"role": "system", "content": "other"}, *TOOLS_SPOKE[1:]])
        expected = expected.replace("<system>s", "<system>other")
    request = request_to(policy, messages=TOOLS_SPOKE, captured_ids=captured)
    hinted = await renderer.hinted(request, "+H")
    assert text(hinted.ids) == expected
    assert (hinted.messages is None) is rewritten
    await renderer.close()


def test_records_that_cannot_be_read() -> None:
    def read(engine: str = "vllm", messages: bytes = b"[]", rendering: bytes = b"{}") -> Request:
        return read_request(engine, "http://127.0.0.1:1", messages, None, rendering, [1])

    assert read().messages == []
    for broken in ({"engine": "tgi"}, {"messages": b"x"}, {"messages": b"{}"}, {"rendering": b"[]"}):
        with pytest.raises(RecordError):
            read(**broken)
