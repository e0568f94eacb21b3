"""What a person does with the page of a running server, in a browser without a window.

    pip install playwright        # its browsers are not needed
    python tour.py http://HOST:PORT [--chromium PATH] [--shots FOLDER] [--key KEY]

The server's first model has a chat template. With --key the server asks for that key. Ends with 0 and "ok", with
1 where the page is not as it should be, and with 69 where there is no browser to look with."""

import argparse
import copy
import json
import os
import re
import shutil
import sys

UNAVAILABLE = 69
try:
    from playwright.sync_api import Error, expect, sync_playwright
except ImportError as error:
    print(f"{error}: pip install playwright", file=sys.stderr)
    sys.exit(UNAVAILABLE)
import mishaps
from stream import ANSWER, THOUGHTS, events

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("url")
parser.add_argument("--chromium", default=os.environ.get("CHROMIUM"), help="[default: chromium]")
parser.add_argument("--shots", help="a folder for pictures of what was seen")
parser.add_argument("--key", help="what the server asks for")
args = parser.parse_args()
args.url = args.url.rstrip("/")
chromium = args.chromium or shutil.which("chromium") or shutil.which("chromium-browser")
if not chromium:
    print("there is no chromium on PATH: install it, or give --chromium", file=sys.stderr)
    sys.exit(UNAVAILABLE)

class Tour:
    """A page, what it has asked for, and what it should not have done."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=args.url)
        self.page = self.context.new_page()
        self.wrong, self.allowed, self.bodies, self.change, self.dialogs = [], [], [], {}, []
        self.watch()

    def watch(self):
        self.network = self.context.new_cdp_session(self.page)
        self.network.send("Network.enable")
        self.page.set_default_timeout(30_000)
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self.requested)
        self.page.on("dialog", self.told)
        self.page.route("**/v1/chat/completions", self.chat)

    def another(self):
        """A tab beside it, with what the browser keeps in common."""
        tab = copy.copy(self)
        tab.page = self.context.new_page()
        tab.watch()
        return tab

    def heard(self, message):
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def told(self, dialog):
        self.dialogs.append(dialog.type)
        dialog.accept()

    def requested(self, request):
        if not request.url.startswith((args.url, "data:", "blob:")):
            self.wrong.append(f"another host is asked: {request.url}")

    def chat(self, route):
        """Notes what is asked, and sends it on with `change`; or answers with `change` itself, or never."""
        body = json.loads(route.request.post_data)
        self.bodies.append(body)
        if "never" in self.change:
            return
        if "fulfill" in self.change:
            route.fulfill(**self.change["fulfill"])
        else:
            route.continue_(post_data=json.dumps(body | self.change))

    def open(self, path="/"):
        self.page.goto(args.url + path)
        if args.key:
            dialog = self.page.get_by_role("dialog", name="This server wants a key")
            field = dialog.get_by_label("API key")
            field.fill("wrong")
            field.press("Enter")
            expect(dialog.get_by_text("does not know this key")).to_be_visible()
            self.shot("key")
            field.fill(args.key)
            field.press("Enter")
            expect(dialog).to_be_hidden()
            # A browser notes every 401.
            self.allowed.append("401")
        if path == "/":
            expect(self.page.get_by_label("Model", exact=True)).not_to_have_value("")

    def shot(self, name):
        if args.shots:
            self.page.screenshot(path=os.path.join(args.shots, f"{name}.png"))

    def check(self):
        """Nothing went wrong that was not meant to."""
        left = [it for it in self.wrong if not any(allowed in it for allowed in self.allowed)]
        assert not left, left
        self.wrong.clear()

    @property
    def draft(self):
        return self.page.get_by_label("Message", exact=True)

    @property
    def answers(self):
        return self.page.locator("article.assistant")

    @property
    def questions(self):
        return self.page.locator("article.user")

    @property
    def items(self):
        return self.page.get_by_role("navigation", name="Conversations").get_by_role("listitem")

    def slow(self, rate=15_000):
        """Lets so many bytes a second come from the server, as few as of a large model; -1: all there are."""
        slow = {"offline": False, "latency": 0, "downloadThroughput": rate, "uploadThroughput": -1}
        self.network.send("Network.emulateNetworkConditions", slow)

    def begin(self, text):
        """Asks, and returns while the answer is written."""
        self.draft.fill(text)
        self.draft.press("Enter")
        expect(self.answers.last.locator(".text:not(.plain)")).to_have_text(re.compile(".{20}", re.S))
        expect(self.page.get_by_role("log")).to_have_attribute("aria-busy", "true")

    def asked(self):
        """What was said in the conversation that was sent last, the answers left out."""
        return [it["content"] for it in self.bodies[-1]["messages"]][::2]

    def say(self, text):
        self.draft.fill(text)
        self.draft.press("Enter")
        self.done()

    def done(self):
        expect(self.page.get_by_role("log")).to_have_attribute("aria-busy", "false", timeout=60_000)

    def fits(self):
        """Nothing is wider than the window."""
        wide = self.page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{wide} pixels do not fit"


def converse(tour):
    """Sends, stops, regenerates, edits, and goes between branches."""
    page = tour.page
    tour.open()
    expect(tour.draft).to_be_focused()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    tour.shot("empty")
    tour.change = {"max_tokens": 30, "ignore_eos": True, "seed": 1}
    tour.say("Tell me of a fox")
    body = tour.bodies[-1]
    assert body["stream"] and body["stream_options"] == {"include_usage": True}, body
    assert body["messages"] == [{"role": "user", "content": "Tell me of a fox"}], body
    assert set(body) == {"model", "messages", "stream", "stream_options"}, body
    expect(tour.answers).to_have_count(1)
    first = tour.answers.locator(".text").inner_text()
    assert len(first) > 20, first
    expect(tour.answers.locator(".numbers")).to_contain_text("30 tokens · ")
    expect(tour.answers.locator(".numbers")).to_contain_text("tokens/s")
    expect(tour.answers.locator(".branches")).to_be_hidden()
    expect(page.locator("#status")).to_have_text("The answer is whole")
    tour.check()

    # Another answer is a branch, and the first one is still there.
    tour.change["seed"] = 2
    tour.answers.get_by_role("button", name="Regenerate").click()
    tour.done()
    second = tour.answers.locator(".text").inner_text()
    assert second != first
    expect(tour.answers.locator(".branch")).to_have_text("2/2")
    tour.answers.get_by_role("button", name="Branch before").click()
    expect(tour.answers.locator(".branch")).to_have_text("1/2")
    expect(tour.answers.locator(".text")).to_have_text(first, use_inner_text=True)
    expect(tour.answers.get_by_role("button", name="Branch after")).to_be_focused()

    # What follows belongs to the branch.
    tour.say("And then?")
    asked = [it["content"] for it in tour.bodies[-1]["messages"]]
    assert asked[0] == "Tell me of a fox" and asked[2] == "And then?", asked
    assert [it["role"] for it in tour.bodies[-1]["messages"]] == ["user", "assistant", "user"]
    assert asked[1].split() == first.split(), (asked, first)
    tour.answers.first.get_by_role("button", name="Branch after").click()
    expect(tour.answers).to_have_count(1)
    expect(tour.answers.locator(".text")).to_have_text(second, use_inner_text=True)
    tour.answers.first.get_by_role("button", name="Branch before").click()
    expect(tour.answers).to_have_count(2)

    # An edited question is a branch too; Escape leaves it as it was.
    tour.questions.last.get_by_role("button", name="Edit").click()
    editor = page.get_by_label("Edit the message")
    expect(editor).to_have_value("And then?")
    editor.press("Escape")
    expect(editor).to_have_count(0)
    tour.questions.last.get_by_role("button", name="Edit").click()
    editor.fill("And before?")
    tour.shot("edit")
    editor.press("Enter")
    tour.done()
    expect(tour.questions.last.locator(".text")).to_have_text("And before?")
    expect(tour.questions.last.locator(".branch")).to_have_text("2/2")
    asked = [it["content"] for it in tour.bodies[-1]["messages"]]
    assert len(asked) == 3 and asked[2] == "And before?", asked
    tour.questions.last.get_by_role("button", name="Branch before").click()
    expect(tour.questions.last.locator(".text")).to_have_text("And then?")

    # All of it is there after a reload, in the branch that was shown.
    shown = tour.page.get_by_role("log").inner_text()
    page.reload()
    expect(tour.questions.last.locator(".text")).to_have_text("And then?")
    expect(tour.answers.locator(".text.plain")).to_have_count(0)
    assert tour.page.get_by_role("log").inner_text() == shown
    tour.check()


def stop(tour):
    """Stops an answer by the button and by Escape, and keeps what came."""
    page = tour.page
    page.get_by_role("button", name="New chat").click()
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    for way in ("button", "key"):
        tour.begin("Tell me a long story")
        if way == "button":
            tour.shot("streaming")
            page.get_by_role("button", name="Stop").click()
        else:
            tour.draft.press("Escape")
        tour.done()
        expect(tour.answers.last.locator(".numbers")).to_contain_text("stopped · ")
        assert len(tour.answers.last.locator(".text").inner_text()) > 5
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(tour.draft).to_be_focused()
    tour.slow(-1)
    tour.check()


def settings(tour):
    """System prompt and sampling are what is asked for, and stay."""
    page = tour.page
    tour.change = {"max_tokens": 8}
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="System prompt and sampling").click()
    given = {"Temperature": 0.5, "Top p": 0.9, "Top k": 40, "Min p": 0.05, "Repeat penalty": 1.1}
    given |= {"Seed": 7, "Max tokens": 9, "Presence penalty": 0.1, "Frequency penalty": -0.1}
    page.get_by_label("System prompt", exact=True).fill("You are a fox.")
    for label, value in given.items():
        page.get_by_label(label, exact=True).fill(str(value))
    # The model has no thoughts to leave out.
    page.get_by_label("Reasoning effort").select_option("None")
    given["Reasoning effort"] = "none"
    tour.shot("settings")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="System prompt and sampling")).to_be_focused()
    tour.say("Who are you?")
    body = tour.bodies[-1]
    for label, value in given.items():
        assert body[label.lower().replace(" ", "_")] == value, (label, body)
    assert body["messages"][0] == {"role": "system", "content": "You are a fox."}, body
    page.reload()
    page.get_by_role("button", name="System prompt and sampling").click()
    expect(page.get_by_label("Top k", exact=True)).to_have_value("40")
    page.get_by_role("button", name="Empty all").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    tour.say("And now?")
    assert set(tour.bodies[-1]) == {"model", "messages", "stream", "stream_options"}, tour.bodies[-1]
    assert tour.bodies[-1]["messages"][0]["role"] == "user"
    tour.check()


def conversations(tour):
    """Conversations are named, exported and deleted."""
    page = tour.page
    items = tour.items
    expect(items).to_have_count(3)
    expect(items.first).to_contain_text("Who are you?")
    name = page.get_by_label("Name of the conversation")
    name.fill("Foxes")
    name.press("Enter")
    expect(items.first).to_contain_text("Foxes")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export the conversation").click()
    with open(download.value.path(), encoding="utf-8") as file:
        exported = json.load(file)
    assert download.value.suggested_filename == "Foxes.json"
    assert exported["messages"][0]["content"] == "Who are you?", exported
    items.first.hover()
    items.first.get_by_role("button", name="Delete “Foxes”").click()
    expect(items).to_have_count(2)
    items.last.get_by_role("button").first.click()
    expect(tour.questions.first.locator(".text")).to_have_text("Tell me of a fox")
    tour.check()


def returns(tour):
    """A conversation that is opened again is as long as it has become since the list was drawn."""
    page = tour.page
    tour.change = {"max_tokens": 8, "ignore_eos": True}
    page.get_by_role("button", name="New chat").click()
    tour.say("One")
    tour.items.first.get_by_role("button").first.click()
    tour.say("Two")
    assert tour.asked() == ["One", "Two"], tour.bodies[-1]
    # It is left while an answer comes, which ends meanwhile.
    tour.change["max_tokens"] = 200
    tour.slow()
    tour.begin("Three")
    page.get_by_role("button", name="New chat").click()
    expect(tour.answers).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=30_000)
    tour.slow(-1)
    tour.items.filter(has_text="One").get_by_role("button").first.click()
    expect(tour.answers.last.locator(".numbers")).to_contain_text("200 tokens")
    tour.change["max_tokens"] = 8
    tour.say("Four")
    assert tour.asked() == ["One", "Two", "Three", "Four"], tour.bodies[-1]
    page.reload()
    expect(tour.answers).to_have_count(4)
    tour.check()


def tabs(tour):
    """Each of two tabs has what is said in the other, and stays where it is."""
    page, other = tour.page, tour.another()
    tour.change = {"max_tokens": 30, "ignore_eos": True}
    page.get_by_role("button", name="New chat").click()
    tour.say("One")
    other.open()
    expect(other.questions.locator(".text")).to_have_text("One")
    tour.questions.get_by_role("button", name="Edit").click()
    editor = page.get_by_label("Edit the message")
    editor.fill("Uno")
    page.set_viewport_size({"width": 1200, "height": 300})
    scroll = page.locator("#scroll")
    for top in ("it.scrollHeight", "0"):
        scroll.evaluate(f"(it) => new Promise((go) => {{ it.onscroll = go; it.scrollTop = {top}; }})")
    other.say("Two")
    expect(tour.answers).to_have_count(2)
    tour.done()
    expect(editor).to_have_value("Uno")
    expect(editor).to_be_focused()
    assert scroll.evaluate("(it) => it.scrollTop") == 0
    page.set_viewport_size({"width": 1200, "height": 800})
    editor.press("Escape")
    tour.say("Three")
    assert tour.asked() == ["One", "Two", "Three"], tour.bodies[-1]
    # Both at once.
    tour.change["max_tokens"] = 200
    tour.slow()
    tour.begin("Four")
    tour.change = {"max_tokens": 8}
    expect(other.questions).to_have_count(4)
    other.say("Five")
    tour.done()
    tour.slow(-1)
    for tab in (tour, other):
        expect(tab.questions.locator(".text")).to_have_text(["One", "Two", "Three", "Four", "Five"])
        expect(tab.answers.nth(3).locator(".numbers")).to_contain_text("200 tokens")
        tab.page.reload()
        expect(tab.answers).to_have_count(5)
        expect(tab.answers.nth(3).locator(".numbers")).to_contain_text("200 tokens")
    # A branch that one begins is the other's too, which has chosen none; what one removes is gone.
    tour.questions.last.get_by_role("button", name="Edit").click()
    editor.fill("Six")
    tour.change = {"max_tokens": 8, "temperature": 1000}
    tour.allowed.append("Failed to load resource")
    editor.press("Enter")
    failed = [tab.answers.last.get_by_role("alert") for tab in (tour, other)]
    for alert in failed:
        expect(alert).to_contain_text("must be between")
    tour.change = {"max_tokens": 8}
    failed[0].get_by_role("button", name="Try again").click()
    tour.done()
    tour.say("Seven")
    for tab in (tour, other):
        expect(tab.questions.locator(".text")).to_have_text(["One", "Two", "Three", "Four", "Six", "Seven"])
        expect(tab.answers).to_have_count(6)
        expect(tab.answers.nth(4).get_by_role("alert")).to_be_hidden()
    other.say("Eight")
    expect(tour.questions.locator(".text")).to_have_text(["One", "Two", "Three", "Four", "Six", "Seven", "Eight"])
    tour.done()
    # What is typed in a dialog stays while the other tab writes.
    other.page.get_by_role("button", name="System prompt and sampling").click()
    other.page.get_by_label("System prompt", exact=True).fill("Be brief.")
    tour.say("Nine")
    other.page.keyboard.press("Escape")
    other.page.reload()
    other.page.get_by_role("button", name="System prompt and sampling").click()
    expect(other.page.get_by_label("System prompt", exact=True)).to_have_value("Be brief.")
    # New conversations would begin with it.
    other.page.get_by_label("System prompt", exact=True).fill("")
    other.page.close()
    tour.check()
    tour.allowed.remove("Failed to load resource")


def models(tour):
    """Another model is served than when the page was opened, or nobody says which."""
    page = tour.page
    tour.allowed.append("Failed to load resource")
    tour.change = {"max_tokens": 8}
    choice = page.get_by_label("Model", exact=True)
    expect(choice).not_to_have_value("")
    name = choice.input_value()
    gone = {"data": [{"id": "gone", "object": "model", "max_model_len": 64}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=gone))
    page.reload()
    expect(choice).to_have_value("gone")
    page.unroute("**/v1/models")
    page.get_by_role("button", name="New chat").click()
    tour.say("Hello")
    alert = tour.answers.get_by_role("alert")
    expect(alert).to_contain_text("there is no model")
    expect(choice).to_have_value(name)
    alert.get_by_role("button", name="Try again").click()
    tour.done()
    expect(alert).to_be_hidden()
    assert tour.bodies[-1]["model"] == name, tour.bodies[-1]
    # The conversation knows its model itself.
    page.route("**/v1/models", lambda route: route.abort())
    page.reload()
    notice = page.locator("#notice")
    expect(notice).to_contain_text("cannot be reached")
    tour.items.first.get_by_role("button").first.click()
    tour.say("And now?")
    assert tour.bodies[-1]["model"] == name, tour.bodies[-1]
    page.unroute("**/v1/models")
    notice.get_by_role("button", name="Try again").click()
    expect(choice).to_have_value(name)
    expect(notice).to_be_hidden()
    # One that completes texts alone is none to chat with; where there are several, answers say whose they are.
    expect(tour.answers.last.locator(".numbers")).not_to_contain_text(name)
    served = [{"id": id, "max_model_len": 64, "chat": id != "base"} for id in ("base", name, "third")]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": served}))
    page.reload()
    expect(choice.locator("option")).to_have_text([name, "third"])
    expect(tour.answers.last.locator(".numbers")).to_contain_text(f"{name} · ")
    page.unroute("**/v1/models")
    # Who does not know what is served asks before the first question.
    for known in (True, False):
        page.route("**/v1/models", lambda route: route.abort())
        page.evaluate("localStorage.clear(), sessionStorage.removeItem('iree-llm/current')")
        page.reload()
        expect(notice).to_contain_text("cannot be reached")
        if known:
            page.unroute("**/v1/models")
        tour.say("Hello")
        assert tour.bodies[-1].get("model") == (name if known else None), tour.bodies[-1]
        expect(tour.answers.locator(".numbers")).to_contain_text("8 tokens")
        page.unroute("**/v1/models")
    page.reload()
    expect(choice).to_have_value(name)
    tour.check()
    tour.allowed.remove("Failed to load resource")


def markdown(tour):
    """Markdown is shown as what it means, code can be copied, and nothing of it runs."""
    page = tour.page
    stream = {"status": 200, "content_type": "text/event-stream", "body": events(ANSWER, THOUGHTS)}
    tour.change = {"fulfill": stream}
    page.get_by_role("button", name="New chat").click()
    tour.say("How do I sort a list in Python?")
    answer = tour.answers.last
    expect(answer.locator("strong")).to_have_text("sort")
    expect(answer.locator("ol li")).to_have_count(2)
    expect(answer.locator("td")).to_have_count(6)
    expect(answer.locator("img, script")).to_have_count(0)
    expect(answer.get_by_text("<script>alert(1)</script>")).to_be_visible()
    links = answer.locator(".text a")
    expect(links).to_have_count(2)
    expect(links.first).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(answer.locator(".bar")).to_contain_text("python")
    answer.get_by_role("button", name="Copy the code").click()
    expect(page.locator("#status")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("def by_length(") and copied.endswith("key=len)\n"), copied
    expect(answer.locator(".text p").first).to_have_attribute("dir", "auto")
    # Twice at once, and where the browser copies nothing.
    button = answer.locator(".bar button")
    button.click()
    expect(button).to_have_text("Copied")
    button.click()
    page.wait_for_timeout(2000)
    expect(button).to_have_text("Copy")
    page.evaluate("""navigator.clipboard.writeText = () => Promise.reject();
        document.execCommand = () => false;""")
    button.click()
    expect(page.locator("#status")).to_have_text("The browser lets this page copy nothing")
    expect(button).to_have_text("Copy")
    page.reload()
    answer.get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("navigator.clipboard.readText()") == ANSWER
    thoughts = answer.locator("details")
    expect(thoughts).not_to_have_attribute("open", "")
    thoughts.locator("summary").click()
    expect(thoughts.locator("div")).to_have_text(THOUGHTS)
    thoughts.locator("summary").click()
    expect(answer.locator(".numbers")).to_contain_text("prompt 31 (16 cached)")
    # Without that, the text is as it was written.
    page.route("**/page/markdown", lambda route: route.abort())
    tour.allowed.append("Failed to load resource")
    page.reload()
    expect(answer.locator(".text.plain")).to_contain_text("**sort**")
    page.unroute("**/page/markdown")
    page.reload()
    expect(answer.locator("strong")).to_have_text("sort")
    tour.check()
    tour.allowed.remove("Failed to load resource")


def looks(tour):
    """Light and dark, as the system has it and as one chooses."""
    page = tour.page
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    theme = page.get_by_label("Theme")
    page.emulate_media(color_scheme="light")
    light = ground()
    tour.shot("light")
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    tour.shot("dark")
    theme.select_option("light")
    assert ground() == light
    page.reload()
    assert ground() == light
    page.emulate_media(color_scheme="light")
    theme.select_option("dark")
    assert ground() == dark
    theme.select_option("auto")
    assert ground() == light
    tour.check()


def errors(tour):
    """What the server says is wrong is shown, and tried again."""
    page = tour.page
    tour.allowed.append("Failed to load resource")
    page.get_by_role("button", name="New chat").click()
    tour.change = {"temperature": 1000}
    tour.say("Hello")
    alert = tour.answers.get_by_role("alert")
    expect(alert).to_contain_text("`temperature`: is 1000: it must be between 0 and 100")
    tour.shot("error")
    tour.change = {"max_tokens": 8}
    alert.get_by_role("button", name="Try again").click()
    tour.done()
    expect(tour.answers).to_have_count(1)
    expect(alert).to_be_hidden()
    expect(tour.answers.locator(".branches")).to_be_hidden()
    # One that comes in the middle leaves what came before.
    error = {"error": {"message": "the engine is gone", "type": "server_error"}}
    body = events("A few words").split("data: {\"choices\": [{\"index\": 0, \"delta\": {}")[0]
    body += f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n"
    tour.change = {"fulfill": {"status": 200, "content_type": "text/event-stream", "body": body}}
    tour.say("More")
    expect(tour.answers.last.get_by_role("alert")).to_contain_text("the engine is gone")
    expect(tour.answers.last.locator(".text")).to_have_text("A few words")
    # What follows an answer that did not begin stays, and the model is not told that it said nothing.
    page.get_by_role("button", name="New chat").click()
    tour.change = {"temperature": 1000}
    tour.say("First")
    expect(alert).to_contain_text("is 1000")
    tour.change = {"max_tokens": 8}
    tour.say("Second")
    tour.done()
    assert tour.bodies[-1]["messages"] == [{"role": "user", "content": "First\n\nSecond"}], tour.bodies[-1]
    alert.get_by_role("button", name="Try again").click()
    tour.done()
    expect(tour.answers).to_have_count(1)
    expect(tour.answers.locator(".branch")).to_have_text("2/2")
    tour.answers.get_by_role("button", name="Branch before").click()
    expect(page.get_by_text("Second", exact=True)).to_be_visible()
    # Enter that ends the composition of a word is not one that sends, as Safari has it.
    tour.draft.fill("にほん")
    tour.draft.evaluate("""(it) => it.dispatchEvent(
        new KeyboardEvent("keydown", {key: "Enter", keyCode: 229, bubbles: true, cancelable: true}))""")
    expect(tour.draft).to_have_value("にほん")
    tour.draft.fill("")
    # Nor does Escape then stop an answer or an edit.
    composing = """(it, key) => it.dispatchEvent(
        new KeyboardEvent("keydown", {key, isComposing: true, bubbles: true, cancelable: true}))"""
    tour.questions.last.get_by_role("button", name="Edit").click()
    editor = page.get_by_label("Edit the message")
    editor.evaluate(composing, "Escape")
    expect(editor).to_be_focused()
    editor.press("Escape")
    title = page.get_by_label("Name of the conversation")
    title.focus()
    title.evaluate(composing, "Enter")
    expect(title).to_be_focused()
    tour.change = {"never": True}
    tour.draft.fill("Hello")
    tour.draft.press("Enter")
    tour.draft.evaluate(composing, "Escape")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.wait_for_timeout(300)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    tour.draft.press("Escape")
    # What was stopped before it began is no branch.
    expect(tour.answers.last.locator(".numbers")).to_have_text("stopped")
    tour.change = {"max_tokens": 8}
    tour.answers.last.get_by_role("button", name="Regenerate").click()
    tour.done()
    expect(tour.answers.last.locator(".branches")).to_be_hidden()
    tour.check()


def back_to(page, place):
    """Goes back by the tab key as far as `place`."""
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        if place.evaluate("(it) => it === document.activeElement"):
            return
    raise AssertionError(f"the tab key does not come to {place}")


def keyboard(tour):
    """All of it without a mouse: to a new chat, a message of two lines, and back to the answer."""
    page = tour.page
    tour.change = {"max_tokens": 8}
    page.reload()
    expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    back_to(page, page.get_by_role("link", name="Skip to the message"))
    page.keyboard.press("Enter")
    expect(tour.draft).to_be_focused()
    back_to(page, page.get_by_role("button", name="New chat"))
    page.keyboard.press("Enter")
    expect(tour.draft).to_be_focused()
    page.keyboard.type("Two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    tour.done()
    assert tour.bodies[-1]["messages"][-1]["content"] == "Two\nlines", tour.bodies[-1]
    back_to(page, tour.answers.get_by_role("button", name="Regenerate"))
    page.keyboard.press("Enter")
    tour.done()
    expect(tour.answers.locator(".branch")).to_have_text("2/2")
    # Everything that can be pressed or filled has a name.
    nameless = page.evaluate("""[...document.querySelectorAll("button, input, select, textarea")]
        .filter((it) => it.checkVisibility() && !it.textContent.trim() && !it.ariaLabel && !it.labels?.length)
        .map((it) => it.outerHTML)""")
    assert not nameless, nameless
    tour.check()


def phone(tour):
    """A window of 360 pixels."""
    page = tour.page
    tour.open()
    tour.fits()
    stream = {"status": 200, "content_type": "text/event-stream", "body": events(ANSWER, THOUGHTS)}
    tour.change = {"fulfill": stream}
    tour.draft.fill("How do I sort a list in Python?")
    # There Enter is a new line.
    page.get_by_role("button", name="Send").tap()
    tour.done()
    expect(tour.answers.locator("strong")).to_have_text("sort")
    tour.answers.get_by_role("button", name="Regenerate").tap()
    tour.done()
    # Where the keyboard would cover the answer.
    expect(tour.draft).not_to_be_focused()
    tour.fits()
    tour.shot("phone")
    tour.change = {"max_tokens": 40, "ignore_eos": True}
    tour.draft.fill("And how do I sort it by length?")
    page.get_by_role("button", name="Send").tap()
    tour.done()
    expect(tour.answers.last.get_by_role("button", name="Continue")).to_be_visible()
    tour.fits()
    tour.shot("phone-continue")
    page.get_by_role("button", name="Conversations").tap()
    new = page.get_by_role("button", name="New chat")
    expect(new).to_be_in_viewport()
    page.wait_for_timeout(300)
    tour.shot("phone-list")
    tour.fits()
    page.keyboard.press("Escape")
    expect(new).to_be_hidden()
    page.get_by_role("button", name="System prompt and sampling").tap()
    tour.shot("phone-settings")
    tour.fits()
    page.get_by_role("dialog").get_by_role("button", name="Close").tap()
    tour.check()


def forgets(tour):
    """A browser that keeps nothing says so, and does all the rest."""
    page = tour.page
    page.add_init_script("""for (const name of ["localStorage", "sessionStorage"]) {
        Object.defineProperty(window, name, {get() { throw new DOMException("denied", "SecurityError"); }});
    }""")
    tour.open()
    expect(page.get_by_role("alert").first).to_contain_text("lets this page keep nothing")
    tour.change = {"max_tokens": 8}
    tour.say("One")
    page.get_by_role("button", name="New chat").click()
    tour.say("Two")
    expect(tour.items).to_have_count(2)
    tour.items.last.get_by_role("button").first.click()
    tour.say("Three")
    assert tour.asked() == ["One", "Three"], tour.bodies[-1]
    page.get_by_label("Theme").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    tour.open("/page/metrics")
    expect(page.get_by_role("status")).to_have_text("Live")
    tour.check()


def metrics(tour, phone_tour):
    """The graphs show what is going on."""
    page = tour.page
    # Two who chat meanwhile.
    ask = """(count) => Promise.all(Array.from({length: count}, async () => {
        const headers = {"Content-Type": "application/json"};
        const key = sessionStorage.getItem("iree-llm/key");
        if (key) headers.Authorization = `Bearer ${key}`;
        const messages = [{role: "user", content: "Tell me of a fox"}];
        const body = JSON.stringify({messages, max_tokens: 60, ignore_eos: true, model: MODEL});
        return (await fetch("/v1/chat/completions", {method: "POST", headers, body})).status;
    }))"""
    tour.open("/page/metrics")
    expect(page.get_by_role("status")).to_have_text("Live")
    page.unroute("**/v1/chat/completions")
    model = page.get_by_role("combobox", name="Model")
    expect(model).not_to_have_value("")
    ask = ask.replace("MODEL", json.dumps(model.input_value()))
    page.get_by_label("Span").select_option("60")
    for _ in range(6):
        assert page.evaluate(ask, 2) == [200, 200]
        page.wait_for_timeout(700)
    graph = page.get_by_role("img", name=re.compile("^Tokens per second: generated [0-9.]+"))
    expect(graph).to_be_visible()
    expect(page.locator("figure")).to_have_count(6)
    assert "L" in graph.locator(".line").first.get_attribute("d")
    for title in ("Time to the first token", "Time between tokens"):
        expect(page.get_by_role("img", name=re.compile(f"{title}: median [0-9.]+ m?s"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("found in the cache: found [0-9]+ %"))).to_be_visible()
    tour.fits()
    page.emulate_media(color_scheme="light")
    tour.shot("metrics-light")
    page.emulate_media(color_scheme="dark")
    page.get_by_text("As a table").click()
    row = page.get_by_role("row", name=re.compile("Tokens per second, generated"))
    assert re.search(r"[0-9.]+/s", row.inner_text()), row.inner_text()
    if args.shots:
        page.screenshot(path=os.path.join(args.shots, "metrics-dark.png"), full_page=True)
    # A tab that nobody sees asks nothing.
    page.evaluate("""Object.defineProperty(document, "hidden", {get: () => window.away, configurable: true});
        window.away = true""")
    expect(page.get_by_role("status")).to_have_text("Paused")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert not asked, asked
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("status")).to_have_text("Live")
    tour.check()
    phone_tour.open("/page/metrics")
    phone_tour.page.wait_for_timeout(2500)
    phone_tour.fits()
    phone_tour.shot("phone-metrics")
    phone_tour.check()


def tour_all(browser):
    desk = {"viewport": {"width": 1200, "height": 800}}
    small = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    tour = Tour(browser, **desk)
    for part in (converse, stop, settings, conversations, returns, tabs, models, markdown, looks, errors, keyboard, *mishaps.PARTS):
        part(tour)
        print(part.__name__, flush=True)
    fed = Tour(browser, **desk)
    mishaps.silence(fed)
    print("silence", flush=True)
    phone(Tour(browser, **small))
    print("phone", flush=True)
    forgets(Tour(browser, **desk))
    print("forgets", flush=True)
    metrics(Tour(browser, **desk), Tour(browser, **small))
    print("metrics", flush=True)


def tour_key(browser):
    """With a key the page asks for it once, also when it is loaded again."""
    tour = Tour(browser, viewport={"width": 1200, "height": 800})
    tour.open()
    tour.change = {"max_tokens": 8}
    tour.say("Hello")
    expect(tour.answers.locator(".text:not(.plain)")).to_be_visible()
    tour.page.reload()
    expect(tour.answers.locator(".text:not(.plain)")).to_be_visible()
    # A key that is known no more is asked for with a question, not to show what was answered.
    unknown = {"status": 401, "json": {"error": {"message": "no valid API key"}}}
    tour.page.route("**/page/markdown", lambda route: route.fulfill(**unknown))
    tour.page.reload()
    expect(tour.answers.locator(".text.plain")).to_be_visible()
    expect(tour.page.get_by_label("Model", exact=True)).not_to_have_value("")
    expect(tour.page.get_by_role("dialog")).to_be_hidden()
    tour.page.unroute("**/page/markdown")
    tour.say("More")
    expect(tour.answers.locator(".text:not(.plain)")).to_have_count(2)
    # Beside it, where the key is known too.
    with tour.page.expect_popup() as metrics:
        tour.page.get_by_role("link", name="Metrics").click()
    expect(metrics.value.get_by_role("status")).to_have_text("Live")
    tour.check()

    # Who has none is asked once, and may come back to it.
    tour = Tour(browser)
    tour.allowed.append("401")
    tour.page.goto(args.url + "/page/metrics")
    dialog = tour.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(tour.page.get_by_role("status")).to_contain_text("no valid API key")
    tour.page.wait_for_timeout(1500)
    expect(dialog).to_be_hidden()
    tour.page.get_by_role("button", name="Give a key").click()
    dialog.get_by_label("API key").fill(args.key)
    dialog.get_by_role("button", name="Go on").click()
    expect(tour.page.get_by_role("status")).to_have_text("Live")
    tour.check()


if args.shots:
    os.makedirs(args.shots, exist_ok=True)
with sync_playwright() as playwright:
    # Chromium's sandbox does not start as root, and this browser sees the one server.
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    try:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
    except Error as error:
        print(f"{chromium} does not start: {error}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    tour_key(browser) if args.key else tour_all(browser)
    browser.close()
print("ok")
