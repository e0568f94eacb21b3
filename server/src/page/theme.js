// Light or dark, as the system has it or as one has chosen. Not a module: it runs before anything is drawn.
"use strict";

{
  const KEY = "iree-llm/theme";
  const known = ["auto", "light", "dark"];
  const read = () => {
    const chosen = localStorage.getItem(KEY);
    return known.includes(chosen) ? chosen : "auto";
  };
  const show = () => {
    document.documentElement.dataset.theme = read();
  };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = read();
    choice.addEventListener("change", () => {
      localStorage.setItem(KEY, choice.value);
      show();
    });
    // Another tab has chosen.
    window.addEventListener("storage", (event) => {
      if (event.key === KEY) {
        show();
        choice.value = read();
      }
    });
  });
}
