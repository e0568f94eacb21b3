// What the browser keeps: `local` for good, `session` until the tab is closed.

/** Keeps until the page is closed, where the browser keeps nothing. */
class Memory {
  getItem(key) {
    return this[key] ?? null;
  }

  setItem(key, value) {
    this[key] = value;
  }

  removeItem(key) {
    delete this[key];
  }
}

/** What the browser calls `name`. Looking for it throws where it may keep nothing. */
function storage(name) {
  try {
    return window[name] ?? new Memory();
  } catch {
    return new Memory();
  }
}

export const local = storage("localStorage");
export const session = storage("sessionStorage");
/** Whether conversations are there when the page is opened again. */
export const keeps = !(local instanceof Memory);
