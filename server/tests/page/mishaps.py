"""What comes between a person and an answer, and what they do about it: parts of the tour."""

import json
import re

from playwright.sync_api import expect
from stream import THOUGHTS, events

# What stands in for the server's stream: `feed` has it say something. A minute lasts three seconds.
FED = """const later = window.setTimeout;
window.setTimeout = (run, after, ...rest) => later(run, after === 60_000 ? 3000 : after, ...rest);
const real = window.fetch;
window.fetch = (url, options) => {
    if (!String(url).endsWith("/v1/chat/completions")) return real(url, options);
    const body = new ReadableStream({
        start: (it) => (window.feed = (text) => it.enqueue(new TextEncoder().encode(text))),
        cancel: () => (window.left = true),
    });
    return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
};"""


def stream(text):
    return {"fulfill": {"status": 200, "content_type": "text/event-stream", "body": text}}


def begin_chat(tour):
    tour.page.get_by_role("button", name="New chat").click()


def until(tour, holds):
    """Waits for it. The page itself may not: its policy lets nobody evaluate what it is told."""
    for _ in range(300):
        if holds():
            return
        tour.page.wait_for_timeout(100)
    raise AssertionError("it does not come to that")


def scrolled(tour):
    """Where the conversation is scrolled to, how high it is, and what is left below; in pixels."""
    return tour.page.locator("#scroll").evaluate(
        "(it) => [it.scrollTop, it.scrollHeight, it.scrollHeight - it.scrollTop - it.clientHeight]"
    )


def grows(tour, pixels=60):
    """Waits until the conversation is higher by so much."""
    height = scrolled(tour)[1]
    until(tour, lambda: scrolled(tour)[1] > height + pixels)


def delete(tour, name):
    item = tour.items.filter(has_text=name)
    item.hover()
    item.get_by_role("button", name=re.compile("^Delete")).click()
    expect(item).to_have_count(0)


def goes_on(tour):
    """An answer that was cut off, stopped or broken goes on where it ended."""
    page, answer = tour.page, tour.answers.last
    more = answer.get_by_role("button", name="Continue")
    said = lambda: answer.locator(".text").inner_text()
    tour.change = {"max_tokens": 12, "ignore_eos": True}
    begin_chat(tour)
    tour.say("Tell me of a fox")
    expect(answer.locator(".numbers")).to_contain_text("cut off by the limit of tokens")
    before = said()
    tour.shot("continue")
    more.click()
    tour.done()
    body = tour.bodies[-1]
    assert body["continue_final_message"] is True and len(body["messages"]) == 2, body
    assert body["messages"][1]["role"] == "assistant", body
    assert body["messages"][1]["content"].split() == before.split(), (body, before)
    assert said().startswith(before.rstrip()) and len(said()) > len(before), (before, said())
    expect(answer.locator(".branches")).to_be_hidden()
    expect(tour.draft).to_be_focused()
    before = said()
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    more.click()
    expect(answer.locator(".text")).not_to_have_text(before, use_inner_text=True)
    page.get_by_role("button", name="Stop").click()
    tour.done()
    tour.slow(-1)
    # What is refused leaves the words that there are.
    before = said()
    tour.allowed.append("Failed to load resource")
    tour.change = {"temperature": 1000}
    more.click()
    expect(answer.get_by_role("alert")).to_contain_text("must be between")
    tour.done()
    assert said() == before
    # Another tab goes on with it, and this one does not forget that.
    other = tour.another()
    other.open()
    tour.change = {"max_tokens": 8, "ignore_eos": True}
    other.answers.last.get_by_role("button", name="Continue").click()
    other.done()
    longer = other.answers.last.locator(".text").inner_text()
    expect(answer.locator(".text")).to_have_text(longer, use_inner_text=True)
    expect(answer.get_by_role("alert")).to_be_hidden()
    other.page.close()
    tour.change = {"max_tokens": 8}
    tour.say("And then?")
    page.reload()
    expect(tour.answers.first.locator(".text")).to_have_text(longer, use_inner_text=True)
    # Not one that something follows, nor one that is whole, nor one without words.
    expect(tour.answers.first.get_by_role("button", name="Continue")).to_be_hidden()
    begin_chat(tour)
    tour.change = stream(events("It is done."))
    tour.say("Is it?")
    expect(more).to_be_hidden()
    thinking = events("", THOUGHTS).split('data: {"choices": [{"index": 0, "delta": {}')[0]
    tour.change = stream(thinking)
    tour.say("Why?")
    expect(answer.get_by_role("alert")).to_contain_text("ended before the answer was whole")
    expect(more).to_be_hidden()
    # What was thought is the model's to know.
    word = {"choices": [{"index": 0, "delta": {"content": "Because"}, "finish_reason": None}]}
    tour.change = stream(f"{thinking}data: {json.dumps(word)}\n\n")
    tour.say("Why, then?")
    tour.change = {"max_tokens": 4}
    more.click()
    tour.done()
    last = tour.bodies[-1]["messages"][-1]
    assert last == {"role": "assistant", "content": "Because", "reasoning_content": THOUGHTS}, last
    tour.check()
    tour.allowed.remove("Failed to load resource")


def follows(tour):
    """The end stays in sight, but for whoever looks at what is before."""
    page = tour.page
    page.set_viewport_size({"width": 1200, "height": 360})
    begin_chat(tour)
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    tour.begin("Tell me a long story")
    grows(tour, 300)
    page.locator("#scroll").hover()
    page.mouse.wheel(0, -40)
    until(tour, lambda: scrolled(tour)[2] > 30)
    top = scrolled(tour)[0]
    grows(tour)
    assert abs(scrolled(tour)[0] - top) < 20, (top, scrolled(tour))
    page.mouse.wheel(0, 100_000)
    until(tour, lambda: scrolled(tour)[2] < 30)
    grows(tour)
    until(tour, lambda: scrolled(tour)[2] < 30)
    tour.draft.press("Escape")
    tour.done()
    page.set_viewport_size({"width": 1200, "height": 800})
    tour.slow(-1)
    tour.check()


def leaves(tour):
    """Who leaves while an answer is written is asked, and the metrics are beside it."""
    page = tour.page
    begin_chat(tour)
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    tour.begin("Tell me a long story")
    with page.expect_popup() as metrics:
        page.get_by_role("link", name="Metrics").click()
    expect(metrics.value.get_by_role("status")).to_have_text("Live")
    metrics.value.close()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    tour.dialogs.clear()
    page.reload()
    assert tour.dialogs == ["beforeunload"], tour.dialogs
    expect(tour.answers.last.get_by_role("button", name="Continue")).to_be_visible()
    tour.slow(-1)
    page.reload()
    assert tour.dialogs == ["beforeunload"], tour.dialogs
    tour.check()


def deleted(tour):
    """What one tab deletes is not written in another."""
    page = tour.page
    begin_chat(tour)
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    tour.begin("Tell me of an owl")
    other = tour.another()
    other.open()
    expect(other.questions.locator(".text")).to_have_text("Tell me of an owl")
    delete(other, "owl")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_text("owl")).to_have_count(0)
    tour.slow(-1)
    page.wait_for_timeout(300)
    page.reload()
    expect(page.get_by_text("owl")).to_have_count(0)
    other.page.close()
    tour.check()


def lists(tour):
    """The list stays as it is while one uses it."""
    page = tour.page
    tour.change = {"max_tokens": 4}
    for name in ("Ada", "Bob", "Eve"):
        begin_chat(tour)
        tour.say(name)
    # What is pressed is what it was when the name of another changes.
    page.get_by_label("Name of the conversation").fill("Mallory")
    tour.items.filter(has_text="Ada").get_by_role("button").first.click()
    expect(tour.questions.locator(".text")).to_have_text("Ada")
    expect(tour.items.first).to_contain_text("Mallory")
    # What has not changed is not read again.
    read = page.evaluate("""() => {
        const [parse, texts] = [JSON.parse, []];
        JSON.parse = (text) => (texts.push(text), parse(text));
        window.dispatchEvent(new StorageEvent("storage", { key: "another" }));
        JSON.parse = parse;
        return texts.length;
    }""")
    assert read == 0, read
    # By keys: the focus goes to what is beside.
    tour.items.filter(has_text="Bob").get_by_role("button", name="Delete").press("Enter")
    expect(tour.items.filter(has_text="Bob")).to_have_count(0)
    expect(tour.items.filter(has_text="Ada").get_by_role("button").first).to_be_focused()
    for name in ("Mallory", "Ada"):
        delete(tour, name)
    tour.check()


def full(tour):
    """What the browser has no room for is not lost while the page is open."""
    page, notice = tour.page, tour.page.locator("#notice")
    tour.change = stream(events("So it is."))
    begin_chat(tour)
    tour.say("Old " + "words " * 4000)
    tour.change = {"max_tokens": 8}
    # All the room that is left.
    page.evaluate("""() => {
        let junk = "";
        for (let more = 1 << 23; more >= 1; more >>= 1) {
            try {
                localStorage.setItem("junk", junk + "x".repeat(more));
                junk += "x".repeat(more);
            } catch {}
        }
    }""")
    begin_chat(tour)
    tour.say("New")
    expect(notice).to_contain_text("has no room for this conversation")
    tour.shot("full")
    notice.get_by_role("button", name="Close").click()
    tour.say("Newer")
    expect(notice).to_be_hidden()
    # It is there beside others, and whoever leaves is asked.
    tour.items.filter(has_text="Old").get_by_role("button").first.click()
    tour.items.filter(has_text="New").get_by_role("button").first.click()
    expect(tour.questions.locator(".text")).to_have_text(["New", "Newer"])
    begin_chat(tour)
    tour.say("Other")
    expect(notice).to_contain_text("has no room for this conversation")
    # With room it is kept.
    delete(tour, "Old")
    expect(notice).to_be_hidden()
    tour.dialogs.clear()
    page.reload()
    assert not tour.dialogs, tour.dialogs
    tour.items.filter(has_text="New").get_by_role("button").first.click()
    expect(tour.questions.locator(".text")).to_have_text(["New", "Newer"])
    page.evaluate("localStorage.removeItem('junk')")
    tour.check()


def unrendered(tour):
    """What is rendered stays while the server renders nothing, and what is too long is shown as it is."""
    page, text = tour.page, tour.answers.last.locator(".text")
    tour.allowed.append("Failed to load resource")
    begin_chat(tour)
    tour.change = {"max_tokens": 1900, "ignore_eos": True}
    tour.slow()
    tour.begin("Tell me a long story")
    with page.expect_event("requestfailed", lambda it: it.url.endswith("/page/markdown")):
        page.route("**/page/markdown", lambda route: route.abort())
    page.wait_for_timeout(500)
    expect(text).not_to_have_class(re.compile("plain"))
    page.unroute("**/page/markdown")
    grows(tour, 40)
    page.get_by_role("button", name="Stop").click()
    tour.done()
    # The server is asked once whether that is too much.
    asked = []

    def refuse(route):
        asked.append(route.request.post_data)
        route.fulfill(status=413, json={"error": {"message": "too long"}})

    page.route("**/page/markdown", refuse)
    tour.draft.fill("Another")
    tour.draft.press("Enter")
    expect(text).to_have_text(re.compile(".{400}", re.S))
    expect(text).to_have_class(re.compile("plain"))
    page.get_by_role("button", name="Stop").click()
    tour.done()
    assert len(asked) == 1, len(asked)
    page.unroute("**/page/markdown")
    tour.slow(-1)
    tour.check()
    tour.allowed.remove("Failed to load resource")


def silence(tour):
    """A server of which nothing is heard is given up; and what is thought meanwhile can be selected."""
    page = tour.page
    page.add_init_script(FED)
    tour.open()
    feed = lambda text: page.evaluate("(text) => feed(text)", text)
    thought = lambda it: {"choices": [{"index": 0, "delta": {"reasoning_content": it}}]}
    tour.draft.fill("Hello")
    tour.draft.press("Enter")
    until(tour, lambda: page.evaluate("Boolean(window.feed)"))
    thoughts = tour.answers.locator(".thoughts div")
    feed(f"data: {json.dumps(thought('One two'))}\n\n")
    expect(thoughts).to_have_text("One two")
    thoughts.evaluate("(it) => getSelection().selectAllChildren(it)")
    feed(f"data: {json.dumps(thought(' three'))}\n\n")
    expect(thoughts).to_have_text("One two three")
    assert page.evaluate("getSelection().toString()") == "One two three"
    for _ in range(3):
        page.wait_for_timeout(2000)
        feed(": still there\n\n")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(tour.answers.get_by_role("alert")).to_contain_text("Nothing has come from the server for a minute")
    until(tour, lambda: page.evaluate("window.left"))
    tour.check()


PARTS = (goes_on, follows, leaves, deleted, lists, full, unrendered)
