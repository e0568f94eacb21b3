"""Writes expected.json: what transformers' apply_chat_template makes of the templates beside it.

    pip install transformers jinja2 tokenizers && python make_expected.py

The templates are written after those of the families that they are named for: their formats and
their ways of saying it in Jinja, with shorter prose.
"""

import datetime
import json
from pathlib import Path

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
NOW = datetime.datetime(2024, 7, 26, 9, 5, 3)


class Clock(datetime.datetime):
    """The tests' clock stands still too."""

    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Clock

SYSTEM = {"role": "system", "content": "  Be kind & <short>.\n"}
USER = {"role": "user", "content": " Wie spät ist es in 東京? \U0001f98a "}
ANSWER = {"role": "assistant", "content": "Nine o'clock.\n"}
NEXT = {"role": "user", "content": "And \"why\"?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, e.g. \"Zürich\" <now>",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town & its country"},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "days": {"type": "integer", "default": 3, "minimum": 0.5},
                "exact": {"type": "boolean", "default": True},
                "near": {"type": "array", "items": {}, "default": None, "examples": []},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}


def call(name, arguments, id):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call("get_weather", {"place": "Tōkyō", "exact": True, "near": None}, "abcdefghi")],
}
CALLS = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [*CALL["tool_calls"], call("clock", {}, "123456789")],
}
RESULT = {
    "role": "tool",
    "name": "get_weather",
    "content": "{\"rain\": true}",
    "tool_call_id": "abcdefghi",
}
TIME = {"role": "tool", "name": "clock", "content": "9:05", "tool_call_id": "123456789"}
THOUGHT = {"role": "assistant", "content": "<think>\nHm, so.\n</think>\n\nBecause."}
REASONED = {"role": "assistant", "content": "Rain.", "reasoning_content": "\nIt says so.\n"}
NO_CONTENT = {**CALL, "content": None}

TURNS = {
    "a question": [USER],
    "with a system message": [SYSTEM, USER],
    "two turns": [SYSTEM, USER, ANSWER, NEXT],
    "an answer at the end": [USER, ANSWER],
}
TOOLS = {
    "a call": [SYSTEM, USER, CALL, RESULT],
    "two calls": [USER, CALLS, RESULT, TIME, ANSWER, NEXT],
    "a question with tools": [USER],
    "a question with tools and a system message": [SYSTEM, USER],
}
THOUGHTS = {
    "thoughts are left out of the past": [USER, THOUGHT, NEXT],
    "thoughts of this turn stay": [USER, THOUGHT],
    "thoughts between calls": [USER, {**CALL, **REASONED, "tool_calls": CALL["tool_calls"]}, RESULT],
    "no content": [USER, NO_CONTENT, RESULT],
}
GONE_ON = {
    "an answer goes on": [SYSTEM, USER, {**ANSWER, "content": "Nine o'"}],
    "an answer goes on behind a space": [USER, ANSWER, NEXT, {**ANSWER, "content": "Be "}],
    "an answer goes on in a second line": [USER, ANSWER],
}
REFUSED = {
    "two questions at once": [USER, NEXT],
    "an answer first": [ANSWER, USER],
    "a system message late": [USER, ANSWER, SYSTEM],
}
VALUES = {
    "text": "a \"b\" \\ </é> \U0001f98a\n\t\x7f",
    "b": True,
    "a": False,
    "nothing": None,
    "list": [1, 2.0, -3, "x", 1e16, 1.5e-7, 0.0001, 123456789.25],
    "map": {"z": {}, "deep": [[], [{}], [[1]]]},
    "empty": {},
    "blanks": "\u00a0\u00ad\u200b\u2028\u3000\ufeff\U000e0001 e\u0301\x85\x1b",
}


def cases():
    def of(template, turns, prompt=True, tools=None, **variables):
        for name, messages in turns.items():
            yield template, name, messages, prompt, tools, variables

    for template in ["chatml", "qwen2.5", "qwen3", "qwen3-coder", "llama3", "llama3.2", "smollm3"]:
        yield from of(template, TURNS)
        yield from of(template, {"no prompt": [USER, ANSWER]}, prompt=False)
    for template in ["mistral-v0.1", "mistral-v0.3"]:
        yield from of(template, TURNS)
        yield from of(template, REFUSED)
    for template in ["chatml", "qwen2.5", "qwen3", "llama3", "llama3.2", "mistral-v0.1", "mistral-v0.3"]:
        yield from of(template, GONE_ON, prompt=None)
    yield from of("qwen3", {"thoughts go on": [USER, {**ANSWER, "content": "<think>\nHm"}]}, prompt=None)
    for template in ["qwen2.5", "qwen3", "qwen3-coder", "llama3.2", "mistral-v0.3", "smollm3"]:
        yield from of(template, TOOLS, tools=[WEATHER, CLOCK])
    yield from of("mistral-v0.3", {"a short id": [USER, {**CALL, "tool_calls": [call("f", {}, "1")]}]})
    yield from of("qwen3", THOUGHTS)
    yield from of("qwen3", {"without thinking": [USER]}, enable_thinking=False)
    yield from of("qwen3", {"with thinking": [USER]}, enable_thinking=True)
    yield from of("smollm3", {"without thinking": [USER]}, enable_thinking=False)
    yield from of("smollm3", {"tools for Python too": [USER]}, tools=[CLOCK], python_tools=["clock()"])
    yield from of("llama3.2", {"a date": [USER]}, date_string="1 Jan 2030")
    yield from of(
        "llama3.2", {"tools apart": [USER]}, tools=[WEATHER, CLOCK], tools_in_user_message=False
    )
    yield from of("llama3.2", {"tools without a question": [SYSTEM]}, tools=[CLOCK])
    yield from of("dialect", {"values": [USER]}, values=VALUES)
    yield from of("dialect", {"values and tools": [USER]}, tools=[CLOCK], values=VALUES)


def expected(template, messages, prompt, tools, variables):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"?": 0}, unk_token="?")),
        bos_token="<s>",
        eos_token="</s>",
    )
    if template == "smollm3" and tools:
        # As the model's card gives them.
        variables = {"xml_tools": tools, **variables}
    try:
        return {
            "text": tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=(HERE / f"{template}.jinja").read_text(),
                add_generation_prompt=bool(prompt),
                continue_final_message=prompt is None,
                tokenize=False,
                **variables,
            )
        }
    except (jinja2.TemplateError, ValueError) as error:
        return {"error": str(error)}


def main():
    rows = []
    for template, name, messages, prompt, tools, variables in cases():
        row = {"template": template, "name": name, "messages": messages}
        row |= {"add_generation_prompt": bool(prompt), "tools": tools or [], "variables": variables}
        if prompt is None:
            row["continue_final_message"] = True
        rows.append(row | {"expected": expected(template, messages, prompt, tools, variables)})
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (HERE / "expected.json").write_text(f"[\n{text}\n]\n")


main()
