// The list of conversations where there is no room for it beside the chat: a drawer.

const at = (id) => document.getElementById(id);

export function isOpen() {
  return document.body.classList.contains("side-open");
}

function open() {
  document.body.classList.add("side-open");
  at("open-side").setAttribute("aria-expanded", "true");
  at("main").inert = true;
  at("close-side").focus();
}

export function close() {
  if (!isOpen()) return;
  document.body.classList.remove("side-open");
  at("open-side").setAttribute("aria-expanded", "false");
  at("main").inert = false;
  at("open-side").focus();
}

at("open-side").addEventListener("click", open);
at("close-side").addEventListener("click", close);
at("backdrop").addEventListener("click", close);
matchMedia("(min-width: 50rem)").addEventListener("change", close);
