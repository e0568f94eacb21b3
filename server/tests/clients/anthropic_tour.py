"""What the official client of Anthropic makes of a running server: python anthropic_tour.py http://HOST:PORT MODEL"""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
messages = [{"role": "user", "content": "Who are you?"}]
asked = dict(model=sys.argv[2], messages=messages, max_tokens=20, system="Be brief.")
# The client has no field for it any more.
asked["extra_body"] = {"temperature": 0}

whole = client.messages.create(**asked)
assert whole.role == "assistant" and whole.stop_reason in ("end_turn", "max_tokens"), whole
text = "".join(block.text for block in whole.content)
with client.messages.stream(**asked) as stream:
    assert "".join(stream.text_stream) == text
    last = stream.get_final_message()
assert last.usage.output_tokens == whole.usage.output_tokens > 0
counted = client.messages.count_tokens(**{k: asked[k] for k in ("model", "messages", "system")})
usage = whole.usage
assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens

schema = {"type": "object", "properties": {"on": {"type": "boolean"}}}
schema |= {"required": ["on"], "additionalProperties": False}
tools = [{"name": "switch", "description": "Turns the light on or off.", "input_schema": schema}]
choice = {"type": "tool", "name": "switch"}
try:
    called = client.messages.create(**{**asked, "max_tokens": 100}, tools=tools, tool_choice=choice)
    assert called.stop_reason == "tool_use" and called.content[0].name == "switch", called
    assert isinstance(called.content[0].input["on"], bool)
    with client.messages.stream(
        **{**asked, "max_tokens": 100}, tools=tools, tool_choice=choice
    ) as stream:
        assert stream.get_final_message().content[0].input == called.content[0].input
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "done"}
    turns = [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(**{**asked, "messages": messages + turns}, tools=tools)
except anthropic.BadRequestError as error:
    assert "knows no tools" in str(error), error

for change, expected in [
    ({"model": "nobody"}, anthropic.NotFoundError),
    ({"messages": []}, anthropic.BadRequestError),
    ({"extra_body": {"tempature": 1}}, anthropic.BadRequestError),
]:
    try:
        client.messages.create(**{**asked, **change})
    except expected as error:
        assert error.body["error"]["message"], error
    else:
        raise AssertionError(f"{change} is answered")
print("ok")
