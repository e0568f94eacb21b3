// Lines of numbers over time, drawn as SVG.

const WIDTH = 360;
const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

/** A graph with a line for each of `names`; `say` writes a value in words, with its unit. */
export class Graph {
  constructor(title, names, say, { most = null } = {}) {
    Object.assign(this, { title, names, say, most });
    const template = document.getElementById("graph");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").textContent = title;
    this.svg = this.element.querySelector("svg");
    this.values = names.map((name) => {
      const item = document.createElement("li");
      const value = document.createElement("strong");
      item.append(value, name);
      this.element.querySelector("ul").append(item);
      return value;
    });
  }

  /**
   * Draws `lines`, each a list of `[seconds ago, value]` from old to new, over the last `span` seconds. A value
   * that is null is a gap.
   */
  draw(lines, span) {
    const all = lines.flat().map(([, value]) => value).filter((it) => it !== null);
    const top = this.most ?? roundUp(Math.max(...all, 0));
    const x = (ago) => LEFT + (1 - ago / span) * (WIDTH - LEFT);
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const height = y(part * top);
      parts.push(this.node("path", { class: "grid", d: `M${LEFT} ${height}H${WIDTH}` }));
      const label = this.node("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" });
      label.textContent = this.say(part * top, true);
      parts.push(label);
    }
    for (const [part, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
      const label = this.node("text", { x: x(part * span), y: HEIGHT - 3, "text-anchor": anchor });
      label.textContent = part ? `−${spell(part * span)}` : "now";
      parts.push(label);
    }
    const group = this.node("g", {});
    for (const line of lines) {
      group.append(this.node("path", { class: "line", d: path(line, x, y) }));
    }
    this.svg.replaceChildren(...parts, group);
    const now = lines.map((line) => line.at(-1)?.[1] ?? null);
    now.forEach((value, at) => (this.values[at].textContent = this.say(value)));
    const words = this.names.map((name, at) => `${name} ${this.say(now[at])}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title}: ${words}, at most ${this.say(top)} on the scale`);
  }

  node(name, attributes) {
    const node = document.createElementNS(this.svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }
}

function path(line, x, y) {
  let text = "";
  let drawn = false;
  for (const [ago, value] of line) {
    if (value !== null) {
      const point = `${x(ago).toFixed(1)} ${y(value).toFixed(1)}`;
      // A line of no length is a dot where both its neighbours are gaps.
      text += drawn ? `L${point}` : `M${point}h0`;
    }
    drawn = value !== null;
  }
  return text;
}

/** The next of 1, 2, 5, 10, … */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return ten * [1, 2, 5, 10].find((it) => it * ten >= value * 0.9999);
}

function spell(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${seconds / 60} min`;
}
