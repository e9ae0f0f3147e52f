"""The stock ``openai-agents`` library, on Chat Completions or Responses: a tool loop, then two more questions."""

import asyncio
import json
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL, TOOLS = sys.argv[1], sys.argv[2] == "tools"
MODEL = OpenAIResponsesModel if sys.argv[3] == "responses" else OpenAIChatCompletionsModel


@function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    """Three questions to one agent."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="agent-key")
    agent = Agent(
        name="Weather",
        instructions="You are terse.",
        tools=[get_weather] if TOOLS else [],
        model=MODEL(model="policy", openai_client=client),
        model_settings=ModelSettings(max_tokens=24),
    )
    items: list = []
    num_answers, final = 0, ""
    for question in ("What is the weather in Paris and in Rome?", "Shorter, please.", "Thank you."):
        result = await Runner.run(agent, [*items, {"role": "user", "content": question}], max_turns=4)
        items, final = result.to_input_list(), str(result.final_output)
        num_answers += len(result.raw_responses)
    print(json.dumps({"answers": num_answers, "final": final}))


asyncio.run(main())
