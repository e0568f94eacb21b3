// The end of a conversation stays in sight while it grows, unless one has scrolled away from it.

const scroll = document.getElementById("scroll");
/** Pixels from the end within which one is there again. */
const NEAR = 60;

let following = true;
let last = 0;

const left = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;

scroll.addEventListener("scroll", () => {
  // Where the content shrinks the browser goes up by itself, to the very end.
  if (scroll.scrollTop < last && left() > 3) following = false;
  else if (left() < NEAR) following = true;
  last = scroll.scrollTop;
});
// Thoughts are opened to be read. This event does not bubble.
scroll.addEventListener("toggle", () => (following &&= left() < NEAR), { capture: true });

export function follow() {
  if (following) scroll.scrollTop = scroll.scrollHeight;
}

export function goToEnd() {
  following = true;
  follow();
}
