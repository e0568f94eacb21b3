// The list of conversations.

const list = document.getElementById("conversations");

/**
 * Lists `conversations` (`id` and `name`, and `messages` of those that may have none yet). The entries of those that
 * stay do too: one of them may be pressed just now.
 */
export function showList(conversations, current) {
  const focused = document.activeElement;
  const known = new Map([...list.children].map((it) => [it.dataset.id, it]));
  const items = conversations.map((it) => show(known.get(it.id) ?? newItem(it.id), it, it.id === current));
  for (const item of known.values()) if (!items.includes(item)) item.remove();
  items.forEach((item, place) => {
    if (list.children[place] !== item) list.insertBefore(item, list.children[place]);
  });
  // What is moved loses it.
  if (list.contains(focused)) focused.focus();
}

function newItem(id) {
  const item = document.getElementById("item").content.firstElementChild.cloneNode(true);
  item.dataset.id = id;
  return item;
}

function show(item, { name, messages }, isCurrent) {
  const [open, remove] = item.children;
  if (open.textContent !== name) {
    open.textContent = name;
    remove.setAttribute("aria-label", `Delete “${name}”`);
  }
  if (isCurrent) open.setAttribute("aria-current", "true");
  else open.removeAttribute("aria-current");
  remove.hidden = messages?.length === 0;
  return item;
}

/** What has the focus when the conversation `id` is gone from the list, or null. */
export function beside(id) {
  const item = [...list.children].find((it) => it.dataset.id === id);
  return (item?.nextElementSibling ?? item?.previousElementSibling)?.firstElementChild ?? null;
}
