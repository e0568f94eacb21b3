"""The story grammar: draws a cast, a thing and a plot, and tells it so that names, pronouns,
causes and remedies agree from the first sentence to the last.

`python grammar.py [SEED] [COUNT]` prints sample documents.
"""

import random
import re
import string
import sys
import zlib
from dataclasses import dataclass

from lexicon import KINDS, OBJECTS, PLACES, SEASONS
from plots import HAS, PLOTS, SAVED
from rescues import RESCUES

OPENINGS = [
    "Once upon a time there was {ha} called {h}. {h_he} lived {home}.",
    "The {hadj} {hk} lived {home}. {h_his} name was {h}.",
    "Once upon a time, {home}, there lived {ha}. {h_his} name was {h}.",
    "There was once {ha} called {h}, and {h_he} lived {home}.",
    "{h} was {ha} who lived {home}.",
    "Long ago, {home}, there lived {ha} called {h}.",
    "This is the story of {h}, {ha} who lived {home}.",
    "{h} the {hk} lived {home}.",
    "In a land beyond the hills there lived {ha} called {h}. {h_his} home was {home}.",
    "One {season} morning {ha} woke up {home}. It was {h}.",
]
HABITS = [
    "Every morning {h_he} ate {food} for breakfast.",
    "{h_he} liked {food} more than anything else.",
    "{h_he} was {hadj}, and everybody liked {h_him}.",
    "In the evening {h_he} liked to sit {p} and look at the stars.",
    "{h_he} knew every stone and every tree around {pn}.",
    "{h_he} worked from morning to evening and sang while working.",
]
ENDINGS = [
    "That evening {h} went to sleep with a smile.",
    "And so the day ended well.",
    "When the moon came up, {h} was tired and happy.",
    "They sat together {p} until the stars came out.",
    "In the evening they ate {food} and told each other stories.",
    "And they stayed friends for the rest of their lives.",
    "If you go {pto} today, you may still meet {h} there.",
]
PROUD = [
    "From that day on everybody knew {h} and {h_his} {o}.",
    "{h} was proud, and the {o} got a place of honour.",
    "{h} had always known that the {o} was good for something.",
]
WEATHERED = {"lost", "found", "share", "sick"}


@dataclass
class Story:
    """One story with what is true in it: its text, the slots it was filled from, and questions about it."""

    text: str
    slots: dict
    questions: list


def article(words):
    """`words` with the right indefinite article; "honest" and "unicorn" are the only words here that break the vowel rule."""
    vowel = words[0] in "aeiou" and not words.startswith("uni")
    return ("an " if vowel or words.startswith("honest") else "a ") + words


def prefer(rng, items, salt=None, slope=0.8):
    """Draws from `items` with falling weights, so that some choices are plainly likelier than others.

    With `salt` the order of preference is its own for each salt: foxes prefer other things than bears.
    """
    items = list(items)
    if salt is not None:
        items.sort(key=lambda item: zlib.crc32(f"{salt}/{item}".encode()))
    weights = [(k + 1) ** -slope for k in range(len(items))]
    return rng.choices(items, weights)[0]


class Slots(dict):
    """Slot look-up; a slot written with a capital gives its value with a capital."""

    def __missing__(self, key):
        value = self[key[0].lower() + key[1:]] if key[0].isupper() else None
        if value is None:
            raise KeyError(key)
        return value[0].upper() + value[1:]


def fill(template, slots):
    """Fills slots until none is left (a slot's value may hold slots), then sets sentence capitals."""
    text = template
    while "{" in text:
        text = string.Formatter().vformat(text, (), slots)
    text = re.sub(r'^"?[a-z]', lambda m: m.group().upper(), text)
    return re.sub(r'((?:[.!?]|\.") "?)([a-z])', lambda m: m.group(1) + m.group(2).upper(), text)


def add_character(rng, slots, role, taken, kind=None, name=None, salt=""):
    """Puts a new character into `slots` under `role`; kinds and names never repeat within a story."""
    kinds = [k for k in KINDS if k not in taken]
    kind = kind or prefer(rng, kinds, salt or None, 0.5 if salt else 0.0)
    adjectives, names = KINDS[kind][2].split(), KINDS[kind][3].split()
    names = [n for n in names if n[:-2] not in taken]
    chosen = name or prefer(rng, names, f"{salt}{kind}")
    name, sex = chosen[:-2], chosen[-1]
    he, him, his = ("she", "her", "her") if sex == "f" else ("he", "him", "his")
    adjective = prefer(rng, adjectives)
    slots.update({
        role: name, f"{role}k": kind, f"{role}adj": adjective,
        f"{role}a": article(f"{adjective} {kind}"),
        f"{role}_he": he, f"{role}_him": him, f"{role}_his": his,
    })
    taken.update([kind, name])


def tell(rng, kind=None, thing=None, other=None, name=None):
    """Tells one story; `kind`, `thing`, `other` (a second kind) and `name` ("Ruby-f") are wishes it keeps."""
    slots, taken = Slots(), {other} if other else set()
    kind = kind or prefer(rng, KINDS, slope=0.3)
    add_character(rng, slots, "h", taken, kind, name)

    plain = thing is None and rng.random() < 0.3
    if plain:
        plot_name = prefer(rng, [p for p in PLOTS if not PLOTS[p].get("object", True)], kind)
    else:
        thing = thing or prefer(rng, OBJECTS, kind, 0.6)
        tag = OBJECTS[thing][2]
        if tag and rng.random() < 0.55:
            plot_name = tag
        else:
            plot_name = prefer(rng, [p for p in PLOTS if PLOTS[p].get("object", True)], kind)
    if thing:
        adjective = prefer(rng, OBJECTS[thing][0].split())
        slots.update({"o": thing, "oa": article(f"{adjective} {thing}")})
    rescue = plot_name in RESCUES
    first, second = ("g", "f") if rescue else ("f", "g")
    add_character(rng, slots, first, taken, other, salt=kind)
    add_character(rng, slots, second, taken, salt=kind)

    here = prefer(rng, PLACES, kind)
    there = prefer(rng, [place for place in PLACES if place != here], kind)
    season, weather = prefer(rng, SEASONS, kind)
    slots.update({
        "pn": here[0], "p": here[1], "pto": f"to {here[0]}",
        "qn": there[0], "q": there[1], "qto": f"to {there[0]}",
        "home": KINDS[kind][0], "food": KINDS[kind][1], "season": season,
    })

    parts = [prefer(rng, OPENINGS if not name else OPENINGS[:5], slope=0.5)]
    if rng.random() < 0.5:
        parts.append(prefer(rng, HABITS, kind))
    if rescue:
        about, *body, question, reply = RESCUES[plot_name]
        questions = [(question, reply), ("Who was {g}?", "{g} was {ga}.")]
        steps = [HAS, "P", *body[:2], "P", *body[2:5], "P", SAVED]
        morals = PROUD
    else:
        plot = PLOTS[plot_name]
        about, steps, morals = "{h} " + plot["about"], plot["steps"], plot["moral"]
        questions = plot["qa"] + [("Who was {f}?", "{f} was {fa}.")]
        if "cases" in plot:
            slots.update(prefer(rng, plot["cases"], kind) if rng.random() < 0.7 else rng.choice(plot["cases"]))
    slots["about"] = about

    weather_left = plot_name in WEATHERED and rng.random() < 0.35 and "{season}" not in parts[0]
    for step in steps:
        if step == "P":
            parts.append("\n\n")
            if weather_left:
                parts.append("It was {season}. " + weather)
                weather_left = False
        else:
            parts.append(prefer(rng, step, slope=0.6))
    parts.append("\n\n")
    parts.append(prefer(rng, morals, slope=0.6))
    if plot_name != "sound" and rng.random() < 0.8:
        parts.append(prefer(rng, ENDINGS, kind))
    text = " ".join(part if part == "\n\n" else fill(part, slots) for part in parts)
    questions = questions + [
        ("Who is the story about?", "The story is about {h}, {ha}."),
        ("What was the {hk} called?", "{h_his} name was {h}."),
        ("Where did {h} live?", "{h} lived {home}."),
        ("What happened in the story?", "{about}."),
    ]
    return Story(
        text=re.sub(r" ?\n\n ?", "\n\n", text),
        slots=slots,
        questions=[(fill(q, slots), fill(a, slots)) for q, a in questions],
    )


def main():
    """Prints a few stories and chats."""
    from chat import converse  # chat builds on this module

    seed, count = (int(v) for v in (sys.argv[1:] + ["0", "5"][len(sys.argv) - 1:])[:2])
    rng = random.Random(seed)
    for _ in range(count):
        print(tell(rng).text, end="\n\n-----\n\n")
        for message in converse(rng):
            print(f"[{message['role']}] {message['content']}")
        print("\n-----\n")


if __name__ == "__main__":
    main()
