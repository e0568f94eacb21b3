// The chat: what is shown, what is asked, and what the keys do.

import { chat, models } from "./api.js";
import { copy } from "./clipboard.js";
import { Conversation } from "./conversation.js";
import * as drawer from "./drawer.js";
import { keep, keepUnsaved, unsaved } from "./keep.js";
import { composes, sends, touches } from "./keys.js";
import { beside, showList } from "./list.js";
import { MessageView } from "./message.js";
import { announce, notice, withdraw } from "./notice.js";
import { follow, goToEnd } from "./scroll.js";
import { keepSettings, lastSettings, offerSettings } from "./settings.js";
import { keeps, session } from "./storage.js";

const CURRENT = "iree-llm/current";
/** Milliseconds between two times that an unfinished answer is kept. */
const KEEP = 2000;
const BUSY = "An answer is still being written, here or in another conversation: stop it first.";
const KEEPS_NOTHING = "The browser lets this page keep nothing: conversations are gone when it is closed or loaded again.";

const at = (id) => document.getElementById(id);
const [log, draft, model] = ["log", "draft", "model"].map(at);

let served = [];
let current =
  Conversation.load(session.getItem(CURRENT)) ??
  Conversation.load(Conversation.list()[0]?.id) ??
  Conversation.begin(lastSettings());
/** The message that is being written, with its conversation and what stops it. */
let running = null;
/** What shows each message of the current conversation. */
let views = new Map();

// What is shown

/** Shows the current conversation, all that has changed of it. */
function show() {
  const path = current.path();
  const elements = path.map((message) => {
    let view = views.get(message.id);
    if (!view) views.set(message.id, (view = new MessageView(message, act, announce)));
    showMessage(message);
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

/** Shows what has become of a message that is in view. */
function showMessage(message) {
  views.get(message.id)?.update({
    siblings: current.siblings(message),
    running: running?.message === message,
    last: current.children(message.id).length === 0,
    several: served.length > 1,
  });
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

/** Lists the conversations: those that are not kept first, and of the others what this tab knows. */
function showConversations() {
  const mine = new Map(atWork().map((it) => [it.id, it]));
  const kept = Conversation.list().map((it) => mine.get(it.id) ?? it);
  showList([...[...mine.values()].filter((it) => !kept.includes(it)), ...kept], current.id);
}

/** The conversations that this tab works with. Of each there is one copy, or one would overwrite the other. */
function atWork() {
  const written = running && !running.deleted ? [running.conversation] : [];
  return [...new Set([current, ...written, ...unsaved.values()])];
}

/** The conversation called `id`, or null. */
function find(id) {
  return atWork().find((it) => it.id === id) ?? Conversation.load(id);
}

function openConversation(conversation) {
  current = conversation;
  session.setItem(CURRENT, current.id);
  keepSettings(current.settings);
  showModel();
  // What was said long ago is not said again.
  log.setAttribute("aria-live", "off");
  views = new Map();
  log.replaceChildren();
  show();
  showConversations();
  goToEnd();
  setTimeout(() => log.setAttribute("aria-live", "polite"), 500);
  focusDraft();
}

/** Not on a phone, where a keyboard would cover what there is to see. */
function focusDraft() {
  if (!touches()) draft.focus();
}

function deleteConversation(conversation) {
  if (!confirm(`Delete “${conversation.name}”? It cannot be brought back.`)) return;
  (beside(conversation.id) ?? at("new")).focus();
  forget(conversation);
  announce("Deleted");
}

/** Leaves a conversation that is deleted, here or in another tab. */
function forget(conversation) {
  if (running?.conversation === conversation) {
    running.deleted = true;
    running.controller.abort();
  }
  unsaved.delete(conversation.id);
  // Another tab's may have been kept here meanwhile.
  conversation.delete();
  const [next] = Conversation.list();
  if (conversation === current) openConversation(next ? find(next.id) : Conversation.begin(lastSettings()));
  keepUnsaved();
  showConversations();
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

log.addEventListener("grown", () => {
  showBusy();
  follow();
});

// What is asked

/** Has the server write `message`, or what follows the words that it has. */
async function write(conversation, message) {
  const controller = new AbortController();
  const mine = { conversation, message, controller };
  running = mine;
  const start = performance.now();
  let kept = start;
  const seconds = () => (performance.now() - start) / 1000;
  let frame = 0;
  const showSoon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (current !== conversation) return;
      showMessage(message);
      follow();
    });
  };
  const turn = message.continued;
  /** Whether another tab goes on with it. */
  const theirs = () => message.continued !== turn;
  message.running = true;
  message.pieces = 0;
  keep(conversation);
  show();
  showConversations();
  goToEnd();
  try {
    if (served.length === 0) await loadModels();
    for await (const { choices, model: by, usage } of chat(conversation.request(message), controller.signal)) {
      if (theirs()) break;
      if (by) message.model = by;
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
      showSoon();
    }
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error.message;
    // Another model is served than when the page was opened.
    if (error.status === 404) loadModels();
  }
  delete message.running;
  running = null;
  withdraw(BUSY);
  if (!mine.deleted) keep(conversation);
  if (current === conversation) show();
  else showComposer();
  follow();
  if (!message.error && !theirs()) announce(message.stopped ? "Stopped" : "The answer is whole");
}

/** Whether nothing new can be asked now, as an answer is written, if only in another conversation. */
function isBusy() {
  if (running) notice(BUSY);
  return Boolean(running);
}

/** Asks `text` behind `parent`; whether it could. */
function send(conversation, parent, text) {
  if (isBusy()) return false;
  const question = conversation.add(parent, "user", text);
  write(conversation, conversation.add(question, "assistant", ""));
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
    keep(current);
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
    // An answer without words is no branch, but where something follows it.
    const alone = current.children(message.id).length === 0;
    if (alone && !message.content && !message.reasoning) current.remove(message);
    write(current, current.add(parent, "assistant", ""));
    focusDraft();
  } else if (what === "continue") {
    current.reopen(message);
    write(current, message);
    focusDraft();
  }
}

async function loadModels() {
  try {
    const all = await models();
    // The others refuse what is asked here.
    served = all.some((it) => it.chat) ? all.filter((it) => it.chat) : all;
  } catch (error) {
    notice(error.message, loadModels);
    return;
  }
  if (!keeps) notice(KEEPS_NOTHING);
  else if (!at("notice-retry").hidden) notice("");
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
  keep(current);
  show();
  showConversations();
});
at("title").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !composes(event)) draft.focus();
});
model.addEventListener("change", () => {
  current.settings.model = model.value;
  showServed();
  keep(current);
  keepSettings(current.settings);
});
at("export").addEventListener("click", () => {
  const text = JSON.stringify(current, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${current.name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

offerSettings(
  () => current.settings,
  () => served.find((it) => it.id === current.settings.model)?.sampling ?? {},
  () => {
    // At once: another tab that keeps its own of this conversation takes these over.
    keep(current);
    keepSettings(current.settings);
    showComposer();
  },
);

at("new").addEventListener("click", () => {
  drawer.close();
  openConversation(Conversation.begin(current.settings));
});
at("conversations").addEventListener("click", ({ target }) => {
  const conversation = find(target.closest("li")?.dataset.id);
  if (!conversation) return;
  if (target.closest(".delete")) deleteConversation(conversation);
  if (target.closest(".open")) {
    openConversation(conversation);
    drawer.close();
  }
});

document.addEventListener("keydown", (event) => {
  // Dialogs close themselves.
  if (event.key !== "Escape" || composes(event) || document.querySelector("dialog[open]")) return;
  if (drawer.isOpen()) drawer.close();
  else if (running) stop();
});

// What another tab has changed; what is being written here stays.
window.addEventListener("storage", ({ key, newValue }) => {
  for (const conversation of atWork().filter((it) => key?.endsWith(it.id))) {
    if (newValue === null) forget(conversation);
    else conversation.refresh();
  }
  // There may be room now.
  if (newValue === null) keepUnsaved();
  showModel();
  show();
  showConversations();
});
window.addEventListener("beforeunload", (event) => {
  if (running || unsaved.size > 0) event.preventDefault();
});
window.addEventListener("pagehide", () => {
  if (running && !running.deleted) keep(running.conversation);
});

openConversation(current);
loadModels();
