"""The stock ``langchain-openai`` model: a tool loop by hand, then two more questions, streamed and not."""

import json
import sys

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL, TOOLS = sys.argv[1], sys.argv[2] == "tools"


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


model = ChatOpenAI(base_url=f"{URL}/v1", api_key="agent-key", model="policy", max_tokens=24)
if TOOLS:
    model = model.bind_tools([get_weather])
messages, num_answers = [SystemMessage("You are terse.")], 0
for number, question in enumerate(("What is the weather in Paris and in Rome?", "Shorter, please.", "Thank you.")):
    messages.append(HumanMessage(question))
    for _ in range(4):
        if number % 2:
            answer = None
            for chunk in model.stream(messages):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = model.invoke(messages)
        num_answers += 1
        messages.append(answer)
        for call in answer.tool_calls:
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
        if not answer.tool_calls:
            break
print(json.dumps({"answers": num_answers, "final": messages[-1].content}))
