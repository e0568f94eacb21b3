// What is told beside the messages.

const at = (id) => document.getElementById(id);
const box = at("notice");
const words = box.querySelector("span");

/** Tells what went wrong, and nothing more where there is no `text`; `retry` is what can be tried again. */
export function notice(text, retry) {
  box.hidden = !text;
  words.textContent = text;
  at("notice-retry").hidden = !retry;
  at("notice-retry").onclick = retry;
}

/** Tells it no more, if that is what is told. */
export function withdraw(text) {
  if (words.textContent === text) notice("");
}

/** Says something to those who hear the page. */
export function announce(text) {
  // The same words twice are said twice.
  at("status").textContent = "";
  setTimeout(() => (at("status").textContent = text), 50);
}

at("notice-close").addEventListener("click", () => notice(""));
