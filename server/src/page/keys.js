// What keys mean.

/** Whether a key belongs to a word that is being composed, as in Japanese. */
export function composes(event) {
  // Safari ends the composition before this event, and says by 229 alone that its Enter was part of that.
  return event.isComposing || event.keyCode === 229;
}

/** Whether one writes on glass, where a keyboard covers half of what there is to see. */
export function touches() {
  return matchMedia("(pointer: coarse)").matches;
}

/** Whether a key sends. On a phone Enter is a new line: there is no Shift to hold. */
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !composes(event) && !touches();
}
