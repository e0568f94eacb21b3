// What is copied.

/** Whether the browser has copied `text`; `button` is what was pressed for that. */
async function write(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have that only on this machine or behind TLS, and may refuse it.
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    button.after(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    button.focus();
    return copied;
  }
}

/** Copies `text`, and says so on `button` where it is one with words. */
export async function copy(text, button, announce) {
  const copied = await write(text, button);
  announce(copied ? "Copied" : "The browser lets this page copy nothing");
  // Pressed again, it says so already.
  if (!copied || button.classList.contains("done")) return;
  button.classList.add("done");
  const words = button.textContent.trim();
  if (words) button.textContent = "Copied";
  setTimeout(() => {
    button.classList.remove("done");
    if (words) button.textContent = words;
  }, 1500);
}
