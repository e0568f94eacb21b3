"""What a server streams."""

import json
import re

ANSWER = """Here is how to **sort** a list, in two ways:

1. `sorted(list)` gives a *new* list.
2. `list.sort()` changes the list itself.

```python
def by_length(words: list[str]) -> list[str]:
    # The shortest come first; those of one length stay as they were, because the sort is stable.
    return sorted(words, key=len)
```

| call | gives | changes |
|---|---|--:|
| `sorted(a)` | a list | 0 |
| `a.sort()` | `None` | 1 |

> Both take `key` and `reverse`.

See [the documentation](https://docs.python.org/3/howto/sorting.html), and <script>alert(1)</script>
![not fetched](https://example.com/picture.png) [not run](javascript:alert(1)).
"""
THOUGHTS = "The user wants to sort a list. There are two ways."


def events(text, reasoning=""):
    """A whole stream of an answer."""
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in re.findall(r"\S+\s*", reasoning)]
    deltas += [{"content": piece} for piece in re.findall(r"\S*\s*", text) if piece]
    pieces = [{"choices": [{"index": 0, "delta": it, "finish_reason": None}]} for it in deltas]
    pieces.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    details = {"cached_tokens": 16}
    usage = {"prompt_tokens": 31, "completion_tokens": len(deltas), "prompt_tokens_details": details}
    pieces.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(it)}\n\n" for it in pieces) + "data: [DONE]\n\n"
