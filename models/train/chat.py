"""Conversations around the stories: requests, questions about what was told, and a little small talk."""

from grammar import article, prefer, tell
from lexicon import KINDS, OBJECTS, TRADES

REQUESTS = [
    "Tell me a story about {}.",
    "Please tell me a story about {}.",
    "Can you tell me a story about {}?",
    "Write a story about {}.",
    "I would like to hear a story about {}.",
    "Do you know a story about {}?",
    "A story about {}, please.",
    "tell me a story about {}",
]
OPEN_REQUESTS = [
    "Tell me a story.", "Please tell me a story.", "Tell me something.", "Can you tell me a story?",
    "Do you know a story?", "I want to hear a story.", "Write a short story.", "tell me a story",
]
MORE = ["Another one, please.", "Tell me another story.", "One more, please.", "Can I hear another one?"]
THANKS = [
    ("Thank you.", "You are welcome."), ("Thanks!", "You are welcome."),
    ("That was a nice story.", "I am glad that you liked it."), ("I liked it.", "I am glad that you liked it."),
    ("Good night.", "Good night. Sleep well."), ("Goodbye.", "Goodbye. Come back soon."), ("Bye!", "Goodbye. Come back soon."),
]
SMALL_TALK = [
    ("Hello.", "Hello. Shall I tell you a story?"), ("Hello!", "Hello. Shall I tell you a story?"),
    ("Hi", "Hello. Shall I tell you a story?"), ("Good morning.", "Good morning. Shall I tell you a story?"),
    ("Who are you?", "I am a very small language model. I tell stories."),
    ("What are you?", "I am a very small language model. I tell stories."),
    ("What is your name?", "I have no name. I am a very small language model that tells stories."),
    ("What can you do?", "I can tell small stories and answer questions about them."),
    ("How are you?", "I am well, thank you. Shall I tell you a story?"),
    ("Help", "Ask me for a story, for example about a fox and a lamp."),
]
YES = ["Yes.", "Yes, please.", "Yes!", "Please do."]
# Things outside the story world, so that the model learns to say that it does not know.
STRANGE = (
    "dragon robot princess king wizard planet computer car train rocket unicorn whale lion tiger elephant ghost "
    "teacher doctor city school football telephone island volcano pirate queen giant snake monkey zebra penguin"
).split()
UNKNOWN = [
    "What is the capital of France?", "How much is two and two?", "What time is it?", "Who is the president?",
    "Can you write a program?", "What is the weather like today?", "How far away is the moon?", "Why is the sky blue?",
    "Translate this sentence.", "How do I bake a cake?", "What is the meaning of life?", "Explain how a computer works.",
    "When was the war?", "How old are you?", "Where is Berlin?", "What is the largest number?", "Who wrote this book?",
    "What do you think about music?", "Solve this problem.", "Which city is the biggest?",
]
SYSTEM = ["You are a storyteller.", "You are a helpful assistant.", "You tell short stories.", "Answer the user."]


def ask_for_story(rng):
    """A request and the story that fulfils it, as `(user, assistant, Story)`."""
    if rng.random() < 0.15:
        story = tell(rng)
        return prefer(rng, OPEN_REQUESTS), story.text, story
    if rng.random() < 0.06:
        story = tell(rng)
        wish = article(rng.choice(STRANGE))
        return (prefer(rng, REQUESTS).format(wish),
                f"I know no story about {wish}, but here is another one.\n\n{story.text}", story)
    kind = rng.choice(list(KINDS))
    wish, wants = article(kind), {"kind": kind}
    if rng.random() < 0.25:
        # Any name may be wished for, so that the model learns to copy it.
        owner = rng.choice(list(KINDS))
        name = rng.choice(KINDS[owner][3].split())
        female = {"girl": "f", "boy": "m"}.get(kind)
        if female in (None, name[-1]):
            wants["name"] = name
            wish += f" called {name[:-2]}"
    draw = rng.random()
    if draw < 0.55:
        wants["thing"] = rng.choice(list(OBJECTS))
        wish += f" and {article(wants['thing'])}"
    elif draw < 0.75:
        wants["other"] = rng.choice([k for k in KINDS if k != kind])
        wish += f" and {article(wants['other'])}"
    story = tell(rng, **wants)
    return prefer(rng, REQUESTS).format(wish), story.text, story


def fact(rng):
    """A question about the story world itself, with its answer."""
    if rng.random() < 0.5:
        thing = rng.choice(list(OBJECTS))
        use = OBJECTS[thing][1]
        return f"What is {article(thing)} for?", f"{article(thing).capitalize()} {use}."
    kind = rng.choice([k for k in KINDS if k not in TRADES and k not in ("girl", "boy")])
    home, food = KINDS[kind][:2]
    if rng.random() < 0.5:
        return f"Where does {article(kind)} live?", f"{article(kind).capitalize()} lives {home}."
    return f"What does {article(kind)} eat?", f"{article(kind).capitalize()} eats {food}."


def converse(rng):
    """One conversation as a list of `{"role", "content"}` messages."""
    turns = []
    draw = rng.random()
    if draw < 0.12:
        opening = prefer(rng, SMALL_TALK, slope=0.2)
        turns.append(opening)
        if "Shall I" in opening[1] and rng.random() < 0.5:
            turns.append((rng.choice(YES), tell(rng).text))
    elif draw < 0.24:
        turns += [fact(rng) for _ in range(rng.randint(1, 3))]
    elif draw < 0.30:
        turns.append((rng.choice(UNKNOWN), "I do not know. I only know small stories."))
    if not turns or rng.random() < 0.3:
        user, assistant, story = ask_for_story(rng)
        turns.append((user, assistant))
        questions = [q for q in story.questions]
        rng.shuffle(questions)
        turns += questions[:rng.choice([0, 1, 2, 3, 4])]
        if rng.random() < 0.15:
            turns.append((prefer(rng, MORE), tell(rng).text))
        if rng.random() < 0.2:
            turns.append(rng.choice(THANKS))
    messages = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.12 else []
    for user, assistant in turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return messages
