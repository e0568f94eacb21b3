// A conversation is a tree of messages, of which one path is shown; the browser keeps it.

import { local } from "./storage.js";

const PREFIX = "iree-llm/conversation/";
/** What is listed of each text that is kept, by its key: most texts are those of the time before. */
let listed = new Map();

/** A name that nothing else has. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * `messages` are in the order they were made; each has the id of its `parent`, null for the first ones.
 * `chosen` has, for a parent, which of its children is shown; without that it is the last one.
 */
export class Conversation {
  /** The messages that this tab has written or removed: of the others, another tab may know more. */
  #ours = new Set();
  /** Behind which messages this tab has chosen what is shown. */
  #choices = new Set();

  constructor(data) {
    Object.assign(this, data);
  }

  /** An empty one with `settings`: model, system and sampling. */
  static begin(settings) {
    const updated = Date.now();
    return new Conversation({
      id: newId(), title: "", updated, settings: structuredClone(settings), messages: [], chosen: {},
    });
  }

  /** The one called `id`, or null. */
  static load(id) {
    try {
      const data = JSON.parse(local.getItem(PREFIX + id));
      if (!Array.isArray(data.messages)) return null;
      // What was being written when its page was closed is as long as it came.
      for (const message of data.messages.filter((it) => it.running)) {
        delete message.running;
        message.stopped = true;
      }
      return new Conversation(data);
    } catch {
      return null;
    }
  }

  /** `id`, `name` and `updated` of all that the browser keeps, the latest first. */
  static list() {
    const keys = Object.keys(local).filter((key) => key.startsWith(PREFIX));
    listed = new Map(keys.map((key) => {
      const [known, text] = [listed.get(key), local.getItem(key)];
      if (known?.text === text) return [key, known];
      const { id, name, updated } = Conversation.load(key.slice(PREFIX.length)) ?? {};
      return [key, { text, id, name, updated }];
    }));
    return [...listed.values()].filter((it) => it.id).sort((a, b) => b.updated - a.updated);
  }

  /** What another tab has kept of it stays. Throws when the browser has no room for it. */
  save() {
    this.merge(Conversation.load(this.id));
    local.setItem(PREFIX + this.id, JSON.stringify(this));
  }

  /** Takes the messages of `other`, what is kept of this one, but for those that this tab has written or removed. */
  merge(other) {
    if (!other) return;
    const leads = (id) => [this, other].some((it) => it.children(id).length > 0);
    // The others are removed, unless something follows them.
    this.messages = this.messages.filter((it) => this.#ours.has(it.id) || other.message(it.id) || leads(it.id));
    for (const theirs of other.messages) {
      const known = this.message(theirs.id);
      // What another tab has gone on with since is its own.
      if (theirs.continued > (known?.continued ?? 0)) this.#ours.delete(theirs.id);
      const ours = this.#ours.has(theirs.id);
      if (!known && (!ours || leads(theirs.id))) this.messages.push(theirs);
      if (!known || ours) continue;
      for (const name of Object.keys(known)) delete known[name];
      Object.assign(known, theirs);
    }
    const own = Object.entries(this.chosen).filter(([parent]) => this.#choices.has(parent));
    this.chosen = { ...other.chosen, ...Object.fromEntries(own) };
  }

  /** Takes all that another tab has kept of it. */
  refresh() {
    const other = Conversation.load(this.id);
    if (!other) return;
    this.merge(other);
    const { title, updated, settings } = other;
    Object.assign(this, { title, updated, settings });
  }

  delete() {
    local.removeItem(PREFIX + this.id);
  }

  /** What it is called: what one has written, else its first words. */
  get name() {
    if (this.title) return this.title;
    const first = this.path().find((it) => it.role === "user");
    const words = (first?.content ?? "").trim().replace(/\s+/g, " ");
    return words.length > 48 ? `${words.slice(0, 47).trimEnd()}…` : words || "New chat";
  }

  message(id) {
    return this.messages.find((it) => it.id === id);
  }

  children(parent) {
    return this.messages.filter((it) => it.parent === parent);
  }

  /** `message` and those in its place. */
  siblings(message) {
    return this.children(message.parent);
  }

  /** The messages that are shown. */
  path() {
    const path = [];
    for (let parent = null; ; parent = path.at(-1).id) {
      const children = this.children(parent);
      if (children.length === 0) return path;
      path.push(children.find((it) => it.id === this.chosen[parent]) ?? children.at(-1));
    }
  }

  /** From the first message to `message`. */
  pathTo(message) {
    const path = [];
    for (let it = message; it; it = this.message(it.parent)) path.unshift(it);
    return path;
  }

  /** A new message behind `parent`, shown from now on. */
  add(parent, role, content) {
    const message = { id: newId(), parent: parent?.id ?? null, role, content };
    this.messages.push(message);
    this.#ours.add(message.id);
    this.choose(message);
    this.updated = Date.now();
    return message;
  }

  choose(message) {
    this.chosen[message.parent] = message.id;
    this.#choices.add(String(message.parent));
  }

  /** Lets this tab go on with a message, of which only its words stay. */
  reopen(message) {
    for (const name of ["stopped", "error", "reason", "usage", "first", "seconds"]) delete message[name];
    message.continued = (message.continued ?? 0) + 1;
    this.#ours.add(message.id);
    this.updated = Date.now();
  }

  /** Removes a message that nothing follows. */
  remove(message) {
    this.messages = this.messages.filter((it) => it.id !== message.id);
    this.#ours.add(message.id);
    delete this.chosen[message.parent];
  }

  /** What the server is asked for `message`: an answer, or what follows the words that it has. */
  request(message) {
    const { model, system, sampling } = this.settings;
    const messages = [];
    for (const { role, content } of this.pathTo(message)) {
      const last = messages.at(-1);
      // An answer without words has not been given: what was asked behind it belongs to the question before.
      if (last?.role === role) last.content += `\n\n${content}`;
      else if (content.trim()) messages.push({ role, content });
    }
    if (system.trim()) messages.unshift({ role: "system", content: system });
    const request = { messages, stream: true, stream_options: { include_usage: true }, ...sampling };
    if (model) request.model = model;
    const goesOn = message.content.trim() !== "";
    if (goesOn) request.continue_final_message = true;
    if (goesOn && message.reasoning) messages.at(-1).reasoning_content = message.reasoning;
    return request;
  }
}
