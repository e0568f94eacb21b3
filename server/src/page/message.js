// How one message looks.

import { markdown } from "./api.js";
import { copy } from "./clipboard.js";
import { composes, sends } from "./keys.js";

/** Milliseconds between two renderings of an answer that is still written, at least. */
const BETWEEN = 120;
/** Milliseconds after which the server is asked again that could not render. */
const RETRY = 5000;
/** HTML of whole texts that were rendered before: branches are switched back and forth. */
const rendered = new Map();
const MOST_RENDERED = 300;

/** Makes `text` the text of `element`. What is there of it stays, and stays selected. */
function write(element, text) {
  const node = element.firstChild;
  if (!(node instanceof Text && text.startsWith(node.data))) element.textContent = text;
  else if (text.length > node.length) node.appendData(text.slice(node.length));
}

export class MessageView {
  /** `act(what, message, button)` is called for buttons. */
  constructor(message, act, announce) {
    Object.assign(this, { message, act, announce });
    const template = document.getElementById("message");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.id = `message-${message.id}`;
    this.element.classList.add(message.role);
    const user = message.role === "user";
    this.find("h2").textContent = user ? "You" : "Answer";
    this.find("[data-do=edit]").hidden = !user;
    this.find("[data-do=again]").hidden = user;
    this.element.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-do]");
      if (button) act(button.dataset.do, message, button);
    });
    // The text that is shown, and the HTML of each of its blocks: those that stay are left as they are.
    this.shown = "";
    this.blocks = [];
    this.showPlain();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /**
   * Shows what the message is now; `siblings` are those in its place, `last` whether nothing follows it, `several`
   * whether it could be another model's.
   */
  update({ siblings, running, last, several }) {
    const { message } = this;
    this.element.classList.toggle("running", running);
    const thoughts = this.find(".thoughts");
    const thinks = Boolean(message.reasoning);
    if (thinks && thoughts.hidden) thoughts.open = running;
    // What was thought is in the way once there is an answer.
    if (thinks && running && message.content && !this.folded) {
      this.folded = true;
      thoughts.open = false;
    }
    thoughts.hidden = !thinks;
    write(thoughts.querySelector("div"), message.reasoning ?? "");
    if (message.role === "assistant") this.render();

    const error = this.find(".error");
    error.hidden = !message.error;
    // Said again only when it is another one.
    const words = error.querySelector("span");
    if (words.textContent !== (message.error ?? "")) words.textContent = message.error ?? "";

    const branches = this.find(".branches");
    branches.hidden = siblings.length < 2;
    const at = siblings.indexOf(message);
    this.find(".branch").textContent = `${at + 1}/${siblings.length}`;
    this.find("[data-do=before]").disabled = at === 0;
    this.find("[data-do=after]").disabled = at === siblings.length - 1;
    this.find(".row").hidden = running;
    const isPart = message.stopped || message.error || message.reason === "length";
    this.find("[data-do=continue]").hidden = !(isPart && message.content.trim() && last);
    this.find(".numbers").textContent = running ? "" : numbers(message, several);
  }

  showPlain() {
    const text = this.find(".text");
    this.blocks = [];
    text.classList.add("plain");
    write(text, this.message.content);
  }

  /** Whether there is text that will soon be shown as it is meant. */
  get behind() {
    return this.message.role === "assistant" && !this.failed && this.message.content !== this.shown;
  }

  /** Has the text rendered; what comes meanwhile is rendered after that. */
  render() {
    const text = this.message.content;
    if (text === this.shown) return;
    // Until something is rendered all of it is shown as it is written.
    const isPlain = () => this.find(".text").classList.contains("plain");
    if (isPlain()) this.showPlain();
    if (this.busy || this.tooLong) return;
    const known = rendered.get(text);
    if (known !== undefined) {
      this.showHtml(text, known);
      return;
    }
    this.busy = true;
    const start = performance.now();
    let refused = false;
    markdown(text).then(
      (html) => {
        this.failed = false;
        if (!this.message.running && text === this.message.content) remember(text, html);
        this.showHtml(text, html);
      },
      ({ status }) => {
        this.failed = true;
        this.tooLong = status === 413;
        refused = status >= 400 && status < 500;
        // What was rendered before says more, but where no more of it will be.
        if (this.tooLong || isPlain()) this.showPlain();
        this.grown();
      },
    ).finally(() => {
      // A server with much to do is asked less often.
      const wait = this.failed && !refused ? RETRY : Math.max(BETWEEN, 4 * (performance.now() - start));
      setTimeout(() => {
        this.busy = false;
        // One that has refused may not with a key that is given meanwhile: then there is an update.
        if (!refused && this.element.isConnected) this.render();
      }, wait);
    });
  }

  grown() {
    this.element.dispatchEvent(new Event("grown", { bubbles: true }));
  }

  /** Shows `html`, which `source` has become, from the first block on that is another one than before. */
  showHtml(source, html) {
    const text = this.find(".text");
    if (text.classList.contains("plain")) text.replaceChildren();
    text.classList.remove("plain");
    const template = document.createElement("template");
    template.innerHTML = html;
    const blocks = [...template.content.children];
    const sources = blocks.map((it) => it.outerHTML);
    let same = 0;
    while (same < sources.length && sources[same] === this.blocks[same]) same += 1;
    while (text.children.length > same) text.lastElementChild.remove();
    text.append(...blocks.slice(same).map((it) => this.dress(it)));
    this.blocks = sources;
    this.shown = source;
    this.grown();
  }

  /** A block with what HTML alone does not have. */
  dress(block) {
    const holder = document.createElement("div");
    holder.append(block);
    if (!block.matches("pre")) block.dir = "auto";
    for (const link of holder.querySelectorAll("a")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer nofollow";
    }
    for (const table of holder.querySelectorAll("table")) {
      const wide = document.createElement("div");
      wide.className = "table";
      wide.tabIndex = 0;
      wide.setAttribute("role", "region");
      wide.setAttribute("aria-label", "Table");
      table.replaceWith(wide);
      wide.append(table);
    }
    for (const pre of holder.querySelectorAll("pre")) {
      const template = document.getElementById("code");
      const box = template.content.firstElementChild.cloneNode(true);
      const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "");
      box.querySelector("span").textContent = language ? language[1] : "";
      const button = box.querySelector("button");
      button.addEventListener("click", () => copy(pre.textContent, button, this.announce));
      pre.tabIndex = 0;
      pre.replaceWith(box);
      box.append(pre);
    }
    return holder.firstElementChild;
  }

  /** Puts a field in the place of the text; `send(text)` when that is to be asked instead, and says whether it is. */
  edit(send) {
    if (this.find(".editor")) return;
    const template = document.getElementById("editor");
    const form = template.content.firstElementChild.cloneNode(true);
    const field = form.querySelector("textarea");
    field.value = this.message.content;
    const remove = () => {
      form.remove();
      this.element.classList.remove("editing");
    };
    const close = () => {
      remove();
      this.find("[data-do=edit]").focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text && send(text)) remove();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !composes(event)) {
        event.stopPropagation();
        close();
      } else if (sends(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    form.querySelector("[data-close]").addEventListener("click", close);
    this.element.classList.add("editing");
    this.find(".text").after(form);
    field.focus();
  }
}

function remember(text, html) {
  if (rendered.size >= MOST_RENDERED) rendered.delete(rendered.keys().next().value);
  rendered.set(text, html);
}

function numbers(message, several) {
  const { model, usage, seconds, first } = message;
  const parts = [];
  if (several && model) parts.push(model);
  if (message.stopped) parts.push("stopped");
  if (message.reason === "length") parts.push("cut off by the limit of tokens");
  const count = usage?.completion_tokens ?? message.pieces;
  if (message.role === "assistant" && count) {
    parts.push(`${count} ${count === 1 ? "token" : "tokens"}`);
    if (count > 1 && seconds > first) {
      const rate = (count - 1) / (seconds - first);
      parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
    }
    if (first) parts.push(`first after ${first.toFixed(2)} s`);
  }
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
  }
  return parts.join(" · ");
}
