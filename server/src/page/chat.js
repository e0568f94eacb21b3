// The chat: what is shown, what is asked, and what the keys do.

import { chat, models } from "./api.js";
import { Conversation } from "./conversation.js";
import { MessageView, copy, sends, touches } from "./message.js";
import { keeps, local, session } from "./storage.js";

const SETTINGS = "iree-llm/settings";
const CURRENT = "iree-llm/current";
/** Milliseconds between two times that an unfinished answer is kept. */
const KEEP = 2000;
const BUSY = "An answer is still being written, here or in another conversation: stop it first.";
const KEEPS_NOTHING = "The browser lets this page keep nothing: conversations are gone when it is closed or loaded again.";

const at = (id) => document.getElementById(id);
const [log, scroll, draft, model] = ["log", "scroll", "draft", "model"].map(at);

let served = [];
let current =
  Conversation.load(session.getItem(CURRENT)) ?? Conversation.all()[0] ?? Conversation.begin(lastSettings());
/** The message that is being written, with its conversation and what stops it. */
let running = null;
/** What shows each message of the current conversation. */
let views = new Map();

function lastSettings() {
  const none = { model: "", system: "", sampling: {} };
  try {
    return { ...none, ...JSON.parse(local.getItem(SETTINGS)) };
  } catch {
    return none;
  }
}

function announce(text) {
  // The same words twice are said twice.
  at("status").textContent = "";
  setTimeout(() => (at("status").textContent = text), 50);
}

/** Tells what went wrong beside the messages; `retry` is what can be tried again. */
function notice(text, retry) {
  at("notice").hidden = !text;
  at("notice").querySelector("span").textContent = text;
  at("notice-retry").hidden = !retry;
  at("notice-retry").onclick = retry;
}

function keep(conversation = current) {
  try {
    // An empty one is nothing to come back to.
    if (conversation.messages.length > 0) conversation.save();
    local.setItem(SETTINGS, JSON.stringify(current.settings));
  } catch {
    notice("The browser has no room for this conversation: delete others, or export it.");
  }
}

// What is shown

/** Shows the current conversation, all that has changed of it. */
function show() {
  const path = current.path();
  const elements = path.map((message) => {
    let view = views.get(message.id);
    if (!view) views.set(message.id, (view = new MessageView(message, act, announce)));
    view.update(current.siblings(message), running?.message === message);
    return view.element;
  });
  let same = 0;
  while (same < elements.length && log.children[same] === elements[same]) same += 1;
  while (log.children.length > same) log.lastElementChild.remove();
  log.append(...elements.slice(same));
  at("empty").hidden = path.length > 0;
  showBusy();
  at("export").disabled = path.length === 0;
  // Not while another name is written.
  if (document.activeElement !== at("title")) at("title").value = current.name;
  document.title = current.messages.length ? `${current.name} · iree-llm` : "iree-llm";
  showComposer();
}

/** What is still written is read out when it is whole. */
function showBusy() {
  const behind = [...views.values()].some((it) => it.behind && it.element.isConnected);
  log.setAttribute("aria-busy", String(behind || running?.conversation === current));
}

function showComposer() {
  at("stop").hidden = !running;
  at("send").hidden = Boolean(running);
  at("send").disabled = !draft.value.trim();
  const { system, sampling } = current.settings;
  const changed = Boolean(system.trim()) || Object.keys(sampling).length > 0;
  at("settings").classList.toggle("changed", changed);
}

function showList() {
  const all = Conversation.all();
  if (!all.some((it) => it.id === current.id)) all.unshift(current);
  const items = all.map((conversation) => {
    const item = at("item").content.firstElementChild.cloneNode(true);
    const [open, remove] = item.children;
    item.dataset.id = conversation.id;
    open.textContent = conversation.name;
    if (conversation.id === current.id) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      // It may be longer than when the list was drawn.
      openConversation(find(conversation.id) ?? conversation);
      closeSide();
    });
    remove.setAttribute("aria-label", `Delete “${conversation.name}”`);
    remove.hidden = conversation.messages.length === 0;
    remove.addEventListener("click", () => deleteConversation(conversation));
    return item;
  });
  const focused = document.activeElement.closest("#conversations li");
  const place = [...(focused?.children ?? [])].indexOf(document.activeElement);
  at("conversations").replaceChildren(...items);
  items.find((it) => it.dataset.id === focused?.dataset.id)?.children[place].focus();
}

/** The conversations that this tab works with. Of each there is one copy, or one would overwrite the other. */
function atWork() {
  return [...new Set([current, running?.conversation].filter(Boolean))];
}

/** The conversation called `id`, or null. */
function find(id) {
  return atWork().find((it) => it.id === id) ?? Conversation.load(id);
}

function openConversation(conversation) {
  current = conversation;
  session.setItem(CURRENT, current.id);
  showModel();
  // What was said long ago is not said again.
  log.setAttribute("aria-live", "off");
  views = new Map();
  log.replaceChildren();
  show();
  showList();
  scroll.scrollTop = scroll.scrollHeight;
  following = true;
  setTimeout(() => log.setAttribute("aria-live", "polite"), 500);
  focusDraft();
}

/** Not on a phone, where a keyboard would cover what there is to see. */
function focusDraft() {
  if (!touches()) draft.focus();
}

function deleteConversation(conversation) {
  if (!confirm(`Delete “${conversation.name}”? It cannot be brought back.`)) return;
  if (running?.conversation.id === conversation.id) {
    running.deleted = true;
    running.controller.abort();
  }
  conversation.delete();
  const [next] = Conversation.all();
  if (conversation.id === current.id) openConversation(next ? find(next.id) : Conversation.begin(lastSettings()));
  showList();
  announce("Deleted");
}

/** Shows the model of the current conversation, which is another one where that is served no more. */
function showModel() {
  if (served.length && !served.some((it) => it.id === current.settings.model)) {
    current.settings.model = served[0].id;
  }
  model.value = current.settings.model;
  showServed();
}

function showServed() {
  const found = served.find((it) => it.id === current.settings.model);
  at("served").textContent = found ? `${found.id} has room for ${found.max_model_len} tokens.` : "";
}

// The end stays in sight while it grows, unless one has scrolled away from it.
let following = true;
scroll.addEventListener("scroll", () => {
  following = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
});
function follow() {
  if (following) scroll.scrollTop = scroll.scrollHeight;
}
log.addEventListener("grown", () => {
  showBusy();
  follow();
});

// What is asked

/** Has the server write the message that follows `parent`. */
async function answer(conversation, parent) {
  const message = conversation.add(parent, "assistant", "");
  const controller = new AbortController();
  const mine = { conversation, message, controller };
  running = mine;
  const start = performance.now();
  let kept = start;
  const seconds = () => (performance.now() - start) / 1000;
  const showMine = () => {
    if (current !== conversation) return;
    views.get(message.id)?.update(conversation.siblings(message), running === mine);
    follow();
  };
  message.running = true;
  message.pieces = 0;
  keep(conversation);
  show();
  showList();
  follow();
  try {
    for await (const { choices, usage } of chat(conversation.request(parent), controller.signal)) {
      if (usage) message.usage = usage;
      if (!choices.length) continue;
      const [{ delta, finish_reason: reason }] = choices;
      if (reason) message.reason = reason;
      const { content, reasoning_content: reasoning } = delta;
      if (!content && !reasoning) continue;
      message.first ??= seconds();
      message.seconds = seconds();
      message.pieces += 1;
      message.content += content ?? "";
      if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
      if (performance.now() - kept > KEEP && !mine.deleted) {
        kept = performance.now();
        keep(conversation);
      }
      showMine();
    }
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error.message;
    // Another model is served than when the page was opened.
    if (error.status === 404) loadModels();
  }
  delete message.running;
  running = null;
  if (at("notice").querySelector("span").textContent === BUSY) notice("");
  if (!mine.deleted) keep(conversation);
  if (current === conversation) show();
  else showComposer();
  follow();
  if (!message.error) announce(message.stopped ? "Stopped" : "The answer is whole");
}

/** Whether nothing new can be asked now, as an answer is written, if only in another conversation. */
function isBusy() {
  if (running) notice(BUSY);
  return Boolean(running);
}

/** Asks `text` behind `parent`; whether it could. */
function send(conversation, parent, text) {
  if (isBusy()) return false;
  following = true;
  answer(conversation, conversation.add(parent, "user", text));
  return true;
}

/** What the buttons of a message do. */
function act(what, message, button) {
  const parent = current.message(message.parent);
  const siblings = current.siblings(message);
  const to = { before: -1, after: 1 }[what];
  if (to) {
    const other = siblings[siblings.indexOf(message) + to];
    current.choose(other);
    keep();
    show();
    announce(`Branch ${siblings.indexOf(other) + 1} of ${siblings.length}`);
    const element = views.get(other.id).element;
    const same = element.querySelector(`[data-do=${what}]`);
    (same.disabled ? element.querySelector(".branches button:enabled") : same)?.focus();
  } else if (what === "copy") {
    copy(message.content, button, announce);
  } else if (isBusy()) {
    return;
  } else if (what === "edit") {
    views.get(message.id).edit((text) => {
      const sent = send(current, parent, text);
      if (sent) focusDraft();
      return sent;
    });
  } else if (what === "again" || what === "retry") {
    // An answer that did not begin is no branch, but where something follows it.
    const alone = current.children(message.id).length === 0;
    if (alone && message.error && !message.content) current.remove(message);
    following = true;
    answer(current, parent);
    focusDraft();
  }
}

async function loadModels() {
  try {
    served = await models();
  } catch (error) {
    notice(error.message, loadModels);
    return;
  }
  notice(keeps ? "" : KEEPS_NOTHING);
  model.replaceChildren(...served.map(({ id }) => new Option(id, id)));
  showModel();
  show();
}

// The composer

draft.addEventListener("input", showComposer);
draft.addEventListener("keydown", (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  at("composer").requestSubmit();
});
at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = draft.value.trim();
  if (!text || isBusy()) return;
  draft.value = "";
  send(current, current.path().at(-1), text);
});
const stop = () => {
  running?.controller.abort();
  focusDraft();
};
at("stop").addEventListener("click", stop);

// The head and the settings

at("title").addEventListener("change", () => {
  current.title = at("title").value.trim();
  keep();
  show();
  showList();
});
at("title").addEventListener("keydown", (event) => {
  if (event.key === "Enter") draft.focus();
});
model.addEventListener("change", () => {
  current.settings.model = model.value;
  showServed();
  keep();
});
at("export").addEventListener("click", () => {
  const text = JSON.stringify(current, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${current.name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

const settings = at("settings-dialog");
const inputs = [...at("sampling").querySelectorAll("input")];
at("settings").addEventListener("click", () => {
  at("system").value = current.settings.system;
  const own = served.find((it) => it.id === current.settings.model)?.sampling ?? {};
  for (const input of inputs) {
    input.value = current.settings.sampling[input.name] ?? "";
    if (input.name in own) input.placeholder = own[input.name];
  }
  settings.showModal();
});
settings.addEventListener("input", () => {
  current.settings.system = at("system").value;
  // What is out of range is sent too: the server says what is wrong with it.
  const given = inputs.filter((it) => it.value !== "").map((it) => [it.name, Number(it.value)]);
  current.settings.sampling = Object.fromEntries(given);
  // At once: another tab that keeps its own of this conversation takes these over.
  keep();
  showComposer();
});
settings.addEventListener("click", ({ target }) => {
  if (target === settings || target.closest("[data-close]")) settings.close();
});
at("reset").addEventListener("click", () => {
  for (const input of [at("system"), ...inputs]) input.value = "";
  settings.dispatchEvent(new Event("input"));
});

// The list, which is a drawer where there is no room for it

function openSide() {
  document.body.classList.add("side-open");
  at("open-side").setAttribute("aria-expanded", "true");
  at("main").inert = true;
  at("close-side").focus();
}
function closeSide() {
  if (!document.body.classList.contains("side-open")) return;
  document.body.classList.remove("side-open");
  at("open-side").setAttribute("aria-expanded", "false");
  at("main").inert = false;
  at("open-side").focus();
}
at("open-side").addEventListener("click", openSide);
at("close-side").addEventListener("click", closeSide);
at("backdrop").addEventListener("click", closeSide);
matchMedia("(min-width: 50rem)").addEventListener("change", closeSide);
at("new").addEventListener("click", () => {
  closeSide();
  openConversation(Conversation.begin(current.settings));
});
at("notice-close").addEventListener("click", () => notice(""));

document.addEventListener("keydown", (event) => {
  // Dialogs close themselves.
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("side-open")) closeSide();
  else if (running) stop();
});

// What another tab has changed; what is being written here stays.
window.addEventListener("storage", (event) => {
  for (const conversation of atWork().filter((it) => event.key?.endsWith(it.id))) conversation.refresh();
  showModel();
  show();
  showList();
});
window.addEventListener("pagehide", () => {
  if (running && !running.deleted) keep(running.conversation);
});

openConversation(current);
loadModels();
