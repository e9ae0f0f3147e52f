"""The stock ``smolagents`` library: a ToolCallingAgent, or a CodeAgent, that keeps its memory over two tasks."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

URL, KIND = sys.argv[1], sys.argv[2]
MAX_TOKENS, MAX_STEPS = int(os.environ.get("MAX_TOKENS", "256")), int(os.environ.get("MAX_STEPS", "3"))


@tool
def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    return f"sunny in {city}"


class Counting(OpenAIServerModel):
    """Counts the answers that came, and those of its side calls: at the last step it asks another system, no tools."""

    num_answers = 0
    num_side = 0

    def generate(self, *args, **kwargs):
        """As the library does it."""
        answer = super().generate(*args, **kwargs)
        self.num_answers += 1
        self.num_side += KIND == "tools" and not kwargs.get("tools_to_call_from")
        return answer


model = Counting("policy", api_base=f"{URL}/v1", api_key="agent-key", max_tokens=MAX_TOKENS)
make = CodeAgent if KIND == "code" else ToolCallingAgent
agent = make(tools=[get_weather], model=model, max_steps=MAX_STEPS, verbosity_level=0)
final = ""
for task in ("What is the weather in Paris?", "And in Rome?"):
    final = str(agent.run(task, reset=False))
print(json.dumps({"answers": model.num_answers, "side": model.num_side, "final": final}))
