// Live graphs of what Prometheus would read at /metrics.

import { ask } from "./api.js";
import { Graph } from "./graph.js";

/** Milliseconds between two looks. */
const BETWEEN = 1000;
/** Seconds that are kept. */
const KEEP = 900;
/** Seconds over which rates, and times of requests, are taken. */
const RATE = 3;
const TIMES = 15;
/** Seconds without a look that are a gap. */
const GAP = 5;

const at = (id) => document.getElementById(id);
/** Each has the time in seconds, and the numbers of every model by name and labels. */
const samples = [];

const whole = (value) => (value === null ? "–" : String(Math.round(value * 10) / 10));
const percent = (value) => (value === null ? "–" : `${Math.round(value * 100)} %`);
const rate = (value, short) =>
  value === null ? "–" : `${value < 10 ? Math.round(value * 10) / 10 : Math.round(value)}${short ? "" : "/s"}`;
const time = (value) => {
  if (value === null) return "–";
  return value < 1 ? `${Number((value * 1000).toPrecision(2))} ms` : `${Number(value.toPrecision(3))} s`;
};

const gauge = (name) => (sample) => sample.get(name) ?? null;
const perSecond = (name) => (sample, before) => {
  const { change, seconds } = difference(sample, before(RATE), name);
  return change === null ? null : change / seconds;
};
const part = (name, of) => (sample, before) => {
  const past = before(TIMES);
  const all = difference(sample, past, of).change;
  return all ? difference(sample, past, name).change / all : null;
};
const quantile = (name, q) => (sample, before) => quantileOf(sample, before(TIMES), name, q);

const FIRST = "vllm:time_to_first_token_seconds";
const NEXT = "vllm:inter_token_latency_seconds";
const GRAPHS = [
  ["Tokens per second", rate, {
    generated: perSecond("vllm:generation_tokens_total"),
    "of prompts": perSecond("vllm:prompt_tokens_total"),
  }],
  ["Requests", whole, {
    running: gauge("vllm:num_requests_running"),
    waiting: gauge("vllm:num_requests_waiting"),
  }],
  ["Pages of the KV cache", whole, {
    held: gauge('iree_llm_kv_pages{state="held"}'),
    cached: gauge('iree_llm_kv_pages{state="cached"}'),
  }],
  ["Tokens of prompts found in the cache", percent, {
    found: part("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
  }, { most: 1 }],
  ["Time to the first token", time, { median: quantile(FIRST, 0.5), "95 %": quantile(FIRST, 0.95) }],
  ["Time between tokens", time, { median: quantile(NEXT, 0.5), "95 %": quantile(NEXT, 0.95) }],
].map(([title, say, lines, options]) => {
  const graph = new Graph(title, Object.keys(lines), say, options);
  at("graphs").append(graph.element);
  return { title, say, graph, lines };
});

/** The numbers of each model, from Prometheus' text. */
function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    let model = "";
    const rest = [];
    for (const [whole, key, quoted] of labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      if (key === "model_name") model = quoted.replace(/\\(.)/g, (_, it) => (it === "n" ? "\n" : it));
      else rest.push(whole);
    }
    if (!found.has(model)) found.set(model, new Map());
    found.get(model).set(rest.length ? `${name}{${rest.join(",")}}` : name, Number(value));
  }
  return found;
}

/** How much a count has grown; null where it cannot be known, as when the server began anew. */
function difference(sample, past, name) {
  const [now, then] = [sample?.get(name), past?.values.get(name)];
  const known = now !== undefined && then !== undefined && now >= then;
  return { change: known ? now - then : null, seconds: past?.seconds };
}

/** As Prometheus' histogram_quantile has it, of what was observed since `past`. */
function quantileOf(sample, past, name, q) {
  if (!past) return null;
  const buckets = [];
  for (const key of sample.keys()) {
    if (!key.startsWith(`${name}_bucket{`)) continue;
    const end = /le="([^"]*)"/.exec(key)[1];
    const { change } = difference(sample, past, key);
    if (change === null) return null;
    buckets.push([end === "+Inf" ? Infinity : Number(end), change]);
  }
  buckets.sort(([a], [b]) => a - b);
  const rank = (buckets.at(-1)?.[1] ?? 0) * q;
  if (rank === 0) return null;
  const index = buckets.findIndex(([, count]) => count >= rank);
  const [start, below] = buckets[index - 1] ?? [0, 0];
  const [end, count] = buckets[index];
  return end === Infinity ? start : start + ((end - start) * (rank - below)) / (count - below);
}

/** The sample about `seconds` before the one at `index`, with the seconds between, or null. */
function past(index, model, seconds) {
  const now = samples[index].seconds;
  let found = null;
  for (let i = index - 1; i >= 0; i -= 1) {
    // Nothing is known of what happened in a gap.
    if (samples[i + 1].seconds - samples[i].seconds > GAP) break;
    found = samples[i];
    if (now - found.seconds >= seconds - 0.5) break;
  }
  const values = found?.models.get(model);
  return values ? { values, seconds: now - found.seconds } : null;
}

/** What the graphs show of the sample at `index`, kept once it is known. */
function valuesAt(index, model) {
  const { models, shown } = samples[index];
  if (!shown.has(model)) {
    const sample = models.get(model);
    const before = (seconds) => past(index, model, seconds);
    const value = (of) => (sample ? of(sample, before) : null);
    shown.set(model, GRAPHS.map(({ lines }) => Object.values(lines).map(value)));
  }
  return shown.get(model);
}

function draw() {
  if (samples.length === 0) return;
  const span = Number(at("span").value);
  const model = at("model").value;
  const now = samples.at(-1).seconds;
  const first = samples.findIndex((it) => now - it.seconds <= span);
  const rows = [];
  GRAPHS.forEach(({ title, say, graph, lines }, which) => {
    const names = Object.keys(lines);
    const drawn = names.map((_, line) => {
      const points = [];
      for (let i = first; i < samples.length; i += 1) {
        const ago = now - samples[i].seconds;
        if (i > first && samples[i].seconds - samples[i - 1].seconds > GAP) points.push([ago, null]);
        points.push([ago, valuesAt(i, model)[which][line]]);
      }
      return points;
    });
    graph.draw(drawn, span);
    names.forEach((name, line) => {
      const values = drawn[line].map(([, value]) => value).filter((it) => it !== null);
      const mean = values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
      const most = values.length ? Math.max(...values) : null;
      rows.push([`${title}, ${name}`, say(drawn[line].at(-1)[1]), say(mean), say(most)]);
    });
  });
  const body = at("table").querySelector("tbody");
  body.replaceChildren(...rows.map(([name, ...values]) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    row.append(head, ...values.map((value) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      return cell;
    }));
    return row;
  }));
}

function tell(state) {
  // Said once, not each second.
  if (at("state").textContent !== state) at("state").textContent = state;
}

async function look() {
  const text = await (await ask("metrics")).text();
  const models = parse(text);
  // A clock that stands still while the computer sleeps would draw no gap.
  samples.push({ seconds: Date.now() / 1000, models, shown: new Map() });
  while (samples.at(-1).seconds - samples[0].seconds > KEEP) samples.shift();
  const names = [...models.keys()].filter(Boolean);
  const known = [...at("model").options].map((it) => it.value);
  if (names.join("\n") !== known.join("\n")) {
    const chosen = at("model").value;
    at("model").replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) at("model").value = chosen;
  }
  draw();
  tell("Live");
}

async function clickOn(button) {
  button.hidden = false;
  await new Promise((go) => button.addEventListener("click", go, { once: true }));
  button.hidden = true;
}

async function run() {
  for (;;) {
    if (document.hidden) {
      tell("Paused");
      await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
      continue;
    }
    try {
      await look();
    } catch (error) {
      tell(error.message);
      // Who does not want to give a key now is not asked each second.
      if (error.status === 401) await clickOn(at("again"));
    }
    await new Promise((go) => setTimeout(go, BETWEEN));
  }
}

at("span").addEventListener("change", draw);
at("model").addEventListener("change", draw);
run();
