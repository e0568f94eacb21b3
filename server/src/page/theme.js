// Light or dark, as the system has it or as one has chosen. Not a module: it runs before anything is drawn.
"use strict";

{
  const KEY = "iree-llm/theme";
  const known = ["auto", "light", "dark"];
  const root = document.documentElement;
  const show = (chosen) => {
    root.dataset.theme = known.includes(chosen) ? chosen : "auto";
  };
  try {
    show(localStorage.getItem(KEY));
  } catch {
    // The browser may keep nothing.
  }
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme;
    choice.addEventListener("change", () => {
      show(choice.value);
      try {
        localStorage.setItem(KEY, choice.value);
      } catch {
        // It is chosen until the page is closed.
      }
    });
    // Another tab has chosen.
    window.addEventListener("storage", (event) => {
      if (event.key !== KEY) return;
      show(event.newValue);
      choice.value = root.dataset.theme;
    });
  });
}
