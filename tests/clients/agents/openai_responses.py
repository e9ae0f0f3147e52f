"""The stock ``openai`` client on Responses: a tool loop by ``previous_response_id``, streamed and not."""

import json
import sys

import openai

URL, TOOLS = sys.argv[1], sys.argv[2] == "tools"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="agent-key")
extra = {"tools": [WEATHER]} if TOOLS else {}
previous, num_answers, text = None, 0, ""
for number, question in enumerate(("What is the weather in Paris and in Rome?", "Shorter, please.", "Thank you.")):
    items = [{"role": "user", "content": question}]
    for _ in range(4):
        ask = {"model": "policy", "input": items, "max_output_tokens": 24, "instructions": "You are terse.", **extra}
        if previous:
            ask["previous_response_id"] = previous
        if number % 2:
            response = client.responses.create(**ask)
        else:
            with client.responses.stream(**ask) as stream:
                ends = [event for event in stream if event.type in ("response.completed", "response.incomplete")]
            response = ends[-1].response
        num_answers += 1
        previous = response.id
        text = "".join(part.text for item in response.output if item.type == "message" for part in item.content)
        calls = [item for item in response.output if item.type == "function_call"]
        items = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": f"sunny in {json.loads(call.arguments)['city']}",
            }
            for call in calls
        ]
        if not calls:
            break
print(json.dumps({"answers": num_answers, "final": text}))
