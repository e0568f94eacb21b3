// What the server is asked, with the key that it may want.

import { session } from "./storage.js";

const KEY = "iree-llm/key";
/** Milliseconds after which a stream is lost of which nothing comes: the server says every 15 s that it is there. */
const SILENCE = 60_000;
// The page may be mounted below a path of another program.
const ROOT = new URL("../", import.meta.url);

/** An answer that says what is wrong. */
export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * The answer to a request for `path`. Where the server wants a key, whoever sits here is asked for it, and
 * the request is sent again; not with `quiet`.
 */
export async function ask(path, { quiet, ...options } = {}) {
  for (;;) {
    const key = session.getItem(KEY);
    const headers = new Headers(options.headers);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    let response;
    try {
      response = await fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server cannot be reached: is it running?", 0);
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401) throw problem;
    // Another request may have asked meanwhile.
    const stale = key !== session.getItem(KEY);
    if (!stale && (quiet || !(await askForKey(Boolean(key))))) throw problem;
  }
}

/** The answer to the JSON `body`. */
export function post(path, body, options) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

/** What is served. */
export async function models() {
  return (await (await ask("v1/models")).json()).data;
}

/** The pieces of a streamed answer to `body`. */
export async function* chat(body, signal) {
  const response = await post("v1/chat/completions", body, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await unlessSilent(reader.read());
      if (done) throw new Problem("The connection ended before the answer was whole.", 0);
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (data.length === 0) continue;
        const text = data.map((line) => line.slice(5).trimStart()).join("\n");
        if (text === "[DONE]") return;
        const piece = JSON.parse(text);
        if (piece.error) throw new Problem(piece.error.message, 200);
        yield piece;
      }
    }
  } finally {
    // The server works no more for whom nobody reads.
    reader.cancel().catch(() => {});
  }
}

/** What `read` gives, if that comes in time. */
async function unlessSilent(read) {
  let timer;
  const silent = new Promise((_, reject) => {
    const problem = new Problem("Nothing has come from the server for a minute: the connection is lost.", 0);
    timer = setTimeout(reject, SILENCE, problem);
  });
  try {
    return await Promise.race([read, silent]);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem("The connection broke before the answer was whole.", 0);
  } finally {
    clearTimeout(timer);
  }
}

/** Markdown as HTML that the server has made harmless. Nobody is asked for a key for that: it is not a question. */
export async function markdown(text) {
  return (await (await post("page/markdown", { text }, { quiet: true })).json()).html;
}

async function problemOf(response) {
  const text = await response.text().catch(() => "");
  let message = `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Something between the server and us has answered.
  }
  return new Problem(message, response.status);
}

let asking = null;

/** Whether a key was given. `wrong`: one was, and it is none of the server's. */
function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const form = dialog.querySelector("form");
    const field = dialog.querySelector("input");
    const note = dialog.querySelector("[role=alert]");
    note.textContent = wrong ? "The server does not know this key." : "";
    field.value = "";
    let given = false;
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = field.value.trim();
      // Others cannot be in a header.
      if (!/^[\x21-\x7e]+$/.test(key)) {
        note.textContent = "A key has letters, digits and signs, and no spaces.";
        return;
      }
      session.setItem(KEY, key);
      given = true;
      dialog.close();
    };
    dialog.querySelector("[data-close]").onclick = () => dialog.close();
    dialog.onclose = () => {
      asking = null;
      resolve(given);
    };
    dialog.showModal();
  });
  return asking;
}
