"""What the official client of OpenAI makes of a running server: python openai_tour.py http://HOST:PORT"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

asked = dict(model=model, prompt="Once upon a time", max_tokens=12, temperature=0)
whole = client.completions.create(**asked)
assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
pieces = list(client.completions.create(**asked, stream=True))
assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
several = client.completions.create(**{**asked, "prompt": ["The dog", "The cat"]}, n=2, logprobs=2)
assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
assert len(several.choices[3].logprobs.tokens) == len(several.choices[3].logprobs.top_logprobs) > 0

messages = [{"role": "user", "content": "Who are you?"}]
asked = dict(model=model, messages=messages, max_completion_tokens=10, temperature=0, seed=1)
try:
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 3
    usage = {"include_usage": True}
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options=usage))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
except openai.BadRequestError as error:
    assert "no chat template" in str(error), error

schema = {"type": "object", "properties": {"on": {"type": "boolean"}}}
schema |= {"required": ["on"], "additionalProperties": False}
switch = {"name": "switch", "description": "Turns the light on or off.", "parameters": schema}
tools = [{"type": "function", "function": switch}]
asked = asked | {"max_completion_tokens": 100}
try:
    called = client.chat.completions.create(**asked, tools=tools, tool_choice="required")
    call = called.choices[0].message.tool_calls[0]
    assert call.function.name == "switch" and '"on"' in call.function.arguments, call
    turns = [called.choices[0].message, {"role": "tool", "content": "done", "tool_call_id": call.id}]
    client.chat.completions.create(**{**asked, "messages": messages + turns}, tools=tools)

    flat = [{"type": "function", **switch}]
    said = dict(model=model, temperature=0, max_output_tokens=100)
    first = client.responses.create(**said, input="Who are you?", tools=flat, tool_choice="required")
    call = first.output[0]
    assert (call.type, call.name) == ("function_call", "switch"), call
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = client.responses.create(**said, input=[result], previous_response_id=first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with client.responses.stream(**said, input=[result], previous_response_id=first.id) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == second.output_text
except openai.BadRequestError as error:
    assert "no chat template" in str(error) or "knows no tools" in str(error), error

for change, expected in [
    ({"model": "nobody"}, openai.NotFoundError),
    ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, openai.BadRequestError),
    ({"extra_body": {"tempature": 1}}, openai.BadRequestError),
]:
    try:
        client.chat.completions.create(**{**asked, **change})
    except expected as error:
        assert error.type == "invalid_request_error" and error.param, error
    else:
        raise AssertionError(f"{change} is answered")

with client.completions.create(model=model, prompt="a", max_tokens=500, stream=True) as stream:
    next(iter(stream))  # and leave
print("ok")
