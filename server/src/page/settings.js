// The settings of a conversation: model, system prompt and sampling.

import { local } from "./storage.js";

const KEY = "iree-llm/settings";
const at = (id) => document.getElementById(id);
const dialog = at("settings-dialog");
const inputs = [...at("sampling").querySelectorAll("input, select")];

/** What a conversation begins with that none is before. */
export function lastSettings() {
  const none = { model: "", system: "", sampling: {} };
  try {
    return { ...none, ...JSON.parse(local.getItem(KEY)) };
  } catch {
    return none;
  }
}

export function keepSettings(settings) {
  try {
    local.setItem(KEY, JSON.stringify(settings));
  } catch {
    // There is no room, but in the conversation.
  }
}

/** Has the dialog change what `settings()` gives; `own()` is the sampling of its model. */
export function offerSettings(settings, own, changed) {
  at("settings").addEventListener("click", () => {
    const { system, sampling } = settings();
    at("system").value = system;
    for (const input of inputs) {
      input.value = sampling[input.name] ?? "";
      if (input.name in own()) input.placeholder = own()[input.name];
    }
    dialog.showModal();
  });
  dialog.addEventListener("input", () => {
    // What is out of range is sent too: the server says what is wrong with it.
    const given = inputs.filter((it) => it.value !== "");
    const value = (it) => (it.type === "number" ? Number(it.value) : it.value);
    const sampling = Object.fromEntries(given.map((it) => [it.name, value(it)]));
    Object.assign(settings(), { system: at("system").value, sampling });
    changed();
  });
  dialog.addEventListener("click", ({ target }) => {
    if (target === dialog || target.closest("[data-close]")) dialog.close();
  });
  at("reset").addEventListener("click", () => {
    for (const input of [at("system"), ...inputs]) input.value = "";
    dialog.dispatchEvent(new Event("input"));
  });
}
