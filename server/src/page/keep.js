// Which conversations the browser has kept as they are, and for which it had no room.

import { notice, withdraw } from "./notice.js";

const FULL =
  "The browser has no room for this conversation, and forgets it with the page: export it, or delete others.";

/** Those that it had no room for, by id. */
export const unsaved = new Map();

export function keep(conversation) {
  const { id } = conversation;
  const told = unsaved.has(id);
  // An empty one is nothing to come back to.
  if (conversation.messages.length > 0) unsaved.set(id, conversation);
  keepUnsaved();
  // Once: who closes it has read it.
  if (unsaved.has(id) && !told) notice(FULL);
}

/** Keeps what there may be room for now. */
export function keepUnsaved() {
  for (const [id, conversation] of unsaved) {
    try {
      conversation.save();
      unsaved.delete(id);
    } catch {
      // There is none yet.
    }
  }
  if (unsaved.size === 0) withdraw(FULL);
}
