"""The stock ``openai`` client on Chat Completions: a tool loop, then two more questions, streamed."""

import json
import sys

import openai

URL, TOOLS = sys.argv[1], sys.argv[2] == "tools"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="agent-key")
messages = [{"role": "system", "content": "You are terse."}]
extra = {"tools": [WEATHER]} if TOOLS else {}
num_answers = 0
for question in ("What is the weather in Paris and in Rome?", "Shorter, please.", "Thank you."):
    messages.append({"role": "user", "content": question})
    for _ in range(4):
        with client.chat.completions.stream(model="policy", messages=messages, max_tokens=24, **extra) as stream:
            for _ in stream:
                pass
            # An answer that ends at the limit is no final completion to the helper, but is the agent's all the same.
            message = stream.current_completion_snapshot.choices[0].message
        num_answers += 1
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"})
        if not message.tool_calls:
            break
print(json.dumps({"answers": num_answers, "final": messages[-1]["content"]}))
