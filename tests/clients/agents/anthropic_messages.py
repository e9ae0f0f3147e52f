"""The stock ``anthropic`` client on Messages: a tool loop, then two more questions, streamed and not."""

import json
import sys

import anthropic

URL, TOOLS = sys.argv[1], sys.argv[2] == "tools"
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
client = anthropic.Anthropic(base_url=URL, api_key="agent-key")
extra = {"tools": [WEATHER]} if TOOLS else {}
messages, num_answers, text = [], 0, ""
for number, question in enumerate(("What is the weather in Paris and in Rome?", "Shorter, please.", "Thank you.")):
    messages.append({"role": "user", "content": question})
    for _ in range(4):
        ask = {"model": "policy", "messages": messages, "max_tokens": 24, "system": "You are terse.", **extra}
        if number % 2:
            message = client.messages.create(**ask)
        else:
            with client.messages.stream(**ask) as stream:
                message = stream.get_final_message()
        num_answers += 1
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"sunny in {call.input['city']}"}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
print(json.dumps({"answers": num_answers, "final": text}))
