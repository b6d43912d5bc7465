// Panels one below the other on one time axis, drawn as SVG, with a cursor for mouse and arrow keys.
//
// spec = { x: [from, to], panels: [{ unit, height, most, layers, ends, none }], pauses: [[from, to, text]], marks: [time] }
// none: the text in place of an empty chart
// layer = { kind: "line" | "steps" | "area", points: [[x, y]], lower, colour, dash, letter, pattern }

import { clock } from "./words.js";

const LEFT = 52, RIGHT = 66, TOP = 24, BETWEEN = 14, AXIS = 36;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const NS = "http://www.w3.org/2000/svg";
let patterns = 0;

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const at = (value) => Math.round(value * 10) / 10;

/** The end and the step of an axis: round numbers, with the end at or above `most`. */
function axisScale(most) {
  if (!(most > 0)) return { top: 1, step: 0.5 };
  const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough) * power;
  return { top: Math.ceil(most / step - 1e-9) * step, step };
}

function tick(value, step) {
  const digits = Math.min(6, (String(Number(step.toPrecision(3))).split(".")[1] ?? "").length);
  return value.toLocaleString("en-GB", { minimumFractionDigits: value === 0 ? 0 : digits, maximumFractionDigits: digits });
}

export class Timeline {
  /** `describe(time)`: the text for a time; `name`: the name of the chart for screen readers. */
  constructor(root, name, readout, describe) {
    this.root = root; this.describe = describe; this.readout = readout; this.spec = null; this.cursor = null;
    this.prefix = `p${(patterns += 1)}`;
    this.svg = document.createElementNS(NS, "svg");
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("role", "slider");
    this.svg.setAttribute("aria-label", `${name}; arrow keys move through time`);
    root.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerdown", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.move(null));
    this.svg.addEventListener("blur", () => this.move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.spec && this.draw(this.spec)).observe(root);
  }

  x(time) {
    const [from, to] = this.spec.x;
    return LEFT + ((time - from) / (to - from || 1)) * (this.width - LEFT - RIGHT);
  }

  point(clientX) {
    if (!this.spec) return;
    const [from, to] = this.spec.x, inside = clientX - this.svg.getBoundingClientRect().left - LEFT;
    this.move(from + (Math.min(Math.max(inside / (this.width - LEFT - RIGHT), 0), 1)) * (to - from));
  }

  key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10 }[event.key];
    if (!this.spec || (!way && event.key !== "Home" && event.key !== "End")) return;
    const [from, to] = this.spec.x;
    event.preventDefault();
    if (event.key === "Home") this.move(from);
    else if (event.key === "End") this.move(to);
    else this.move(Math.min(Math.max((this.cursor ?? to) + (way * (to - from)) / 100, from), to));
  }

  move(time) {
    this.cursor = time;
    const line = this.svg.querySelector(".cursor");
    if (!line || !this.spec) return;
    const text = time == null ? "" : this.describe(time);
    this.readout.textContent = text;
    this.svg.setAttribute("aria-valuemin", Math.round(this.spec.x[0]));
    this.svg.setAttribute("aria-valuemax", Math.round(this.spec.x[1]));
    this.svg.setAttribute("aria-valuenow", Math.round(time ?? this.spec.x[1]));
    this.svg.setAttribute("aria-valuetext", text || "the newest");
    line.setAttribute("visibility", time == null ? "hidden" : "visible");
    if (time != null) for (const end of ["x1", "x2"]) line.setAttribute(end, at(this.x(time)));
  }

  draw(spec) {
    this.spec = spec;
    this.width = Math.max(this.root.clientWidth, 240);
    let y = 0;
    const parts = [this.patterns()], floors = [];
    for (const panel of spec.panels) {
      parts.push(this.panel(panel, y + TOP));
      floors.push(y + TOP + panel.height);
      y += TOP + panel.height + BETWEEN;
    }
    const bottom = y - BETWEEN, height = bottom + AXIS;
    parts.push(this.times(bottom));
    parts.push(`<line class="cursor" y1="${TOP}" y2="${bottom}" visibility="hidden"/>`);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.innerHTML = parts.join("");
    this.move(this.cursor);
  }

  patterns() {
    return `<defs><pattern id="${this.prefix}-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
      `<rect width="3.5" height="7" fill="var(--others)"/></pattern></defs>`;
  }

  /** The time axis, below all panels. */
  times(bottom) {
    const [from, to] = this.spec.x, room = (this.width - LEFT - RIGHT) / 74;
    const step = STEPS.find((s) => (to - from) / s <= room) ?? STEPS.at(-1);
    const parts = [`<line class="axis" x1="${LEFT}" x2="${this.width - RIGHT}" y1="${bottom}" y2="${bottom}"/>`];
    const shift = new Date(from * 1000).getTimezoneOffset() * 60;
    for (let time = Math.ceil((from - shift) / step) * step + shift; time <= to; time += step) {
      const x = at(this.x(time)), label = step >= 86400 ? clock(time, false).slice(0, 10) : clock(time, step < 60).slice(-(step < 60 ? 8 : 5));
      parts.push(`<line class="axis" x1="${x}" x2="${x}" y1="${bottom}" y2="${bottom + 4}"/><text x="${x}" y="${bottom + 17}" text-anchor="middle">${label}</text>`);
    }
    parts.push(`<text x="${(LEFT + this.width - RIGHT) / 2}" y="${bottom + 33}" text-anchor="middle">time of day</text>`);
    return parts.join("");
  }

  panel(panel, top) {
    const { top: most, step } = axisScale(panel.most);
    const whole = panel.whole ? Math.max(1, Math.ceil(step)) : step;
    const ceiling = panel.whole ? Math.max(whole, Math.ceil(most / whole) * whole) : most;
    const y = (value) => top + panel.height * (1 - value / ceiling), right = this.width - RIGHT;
    const parts = [`<text class="unit" x="${LEFT}" y="${top - 9}">${escaped(panel.unit)}</text>`];
    if (panel.none && !panel.layers.some((layer) => layer.points.some(([, value]) => value != null))) return parts[0] + this.nothing(panel, top, right);
    for (let value = 0; value <= ceiling * 1.0001; value += whole) {
      parts.push(`<line class="${value ? "grid" : "axis"}" x1="${LEFT}" x2="${right}" y1="${at(y(value))}" y2="${at(y(value))}"/>`);
      parts.push(`<text x="${LEFT - 6}" y="${at(y(value)) + 4}" text-anchor="end">${tick(value, whole)}</text>`);
    }
    for (const time of this.spec.marks ?? []) parts.push(`<line class="mark" x1="${at(this.x(time))}" x2="${at(this.x(time))}" y1="${top}" y2="${top + panel.height}"/>`);
    for (const layer of panel.layers) parts.push(this[layer.kind](layer, y));
    this.labelled = LEFT + 8 * panel.unit.length;
    for (const [from, to, text] of this.spec.pauses ?? []) parts.push(this.pause(from, to, text, top, panel));
    parts.push(this.ends(panel, y, right));
    return parts.join("");
  }

  nothing(panel, top, right) {
    const floor = top + panel.height;
    return `<line class="axis" x1="${LEFT}" x2="${right}" y1="${floor}" y2="${floor}"/>` +
      `<text x="${(LEFT + right) / 2}" y="${top + panel.height / 2}" text-anchor="middle">${escaped(panel.none)}</text>`;
  }

  /** The names at the right ends of lines, at a distance from each other. */
  ends(panel, y, right) {
    let last = Infinity;
    return (panel.ends ?? []).map(([value, text]) => ({ y: y(value) + 4, text })).sort((a, b) => b.y - a.y).map((end) => {
      last = Math.min(end.y, last - 13);
      return `<text class="end" x="${right + 5}" y="${at(last)}">${escaped(end.text)}</text>`;
    }).join("");
  }

  pause(from, to, text, top, panel) {
    const x = Math.max(this.x(from), LEFT), width = Math.max(this.x(to) - x, 2);
    const room = 7 * (text?.length ?? 0) + 8, roomy = text && panel.pauses && x > this.labelled && x + room < this.width - RIGHT;
    if (roomy) this.labelled = x + room;
    const words = roomy ? `<text class="end" x="${at(x + 3)}" y="${top - 9}">${escaped(text)}</text>` : "";
    return `<rect class="pause" x="${at(x)}" y="${top}" width="${at(width)}" height="${panel.height}"/>${words}`;
  }

  line(layer, y) {
    let pen = "M";
    const path = layer.points.map(([time, value]) => {
      if (value == null) { pen = "M"; return ""; }
      const part = `${pen}${at(this.x(time))} ${at(y(value))}`;
      pen = "L";
      return part;
    }).join("");
    return `<path class="line" d="${path}" stroke="${layer.colour}" stroke-dasharray="${layer.dash ?? ""}"/>` + this.dots(layer, y);
  }

  /** A single point is drawn as a dot: a line of one point is invisible. */
  dots(layer, y) {
    const there = layer.points.filter(([, value]) => value != null);
    return there.length === 1 ? `<circle cx="${at(this.x(there[0][0]))}" cy="${at(y(there[0][1]))}" r="3" fill="${layer.colour}"/>` : "";
  }

  /** Each value holds until the next point; null draws nothing. */
  steps(layer, y) {
    let path = "", down = false;
    for (const [time, value] of layer.points) {
      const x = at(Math.max(this.x(time), LEFT));
      if (down) path += `H${x}`;
      if (value == null) { down = false; continue; }
      path += down ? `V${at(y(value))}` : `M${x} ${at(y(value))}`;
      down = true;
    }
    return `<path class="line" d="${path}" stroke="${layer.colour}" stroke-dasharray="${layer.dash ?? ""}"/>`;
  }

  /** The area between two series of steps at the same times. */
  area(layer, y) {
    const { xs, lower, upper } = layer, forth = [], back = [];
    xs.forEach((time, i) => {
      const x = at(this.x(time)), next = i + 1 < xs.length ? at(this.x(xs[i + 1])) : x;
      forth.push(`${i ? "L" : "M"}${x} ${at(y(upper[i]))}H${next}`);
      back.push(`L${next} ${at(y(lower[i]))}H${x}`);
    });
    const fill = layer.pattern ? `url(#${this.prefix}-hatch)` : layer.colour;
    return `<path d="${forth.join("")}${back.reverse().join("")}Z" fill="${fill}"/>` + this.letter(layer, y);
  }

  /** A letter in the thickest part of a band, if there is room. */
  letter(layer, y) {
    if (!layer.letter) return "";
    const { xs, lower, upper } = layer, edge = Math.ceil(xs.length / 40);
    let best = -1, room = 13;
    for (let i = edge; i < xs.length - edge; i += 1) {
      const narrow = Math.min(...[i - edge, i, i + edge].map((j) => y(lower[j]) - y(upper[j])));
      if (narrow > room) { room = narrow; best = i; }
    }
    return best < 0 ? "" : `<text class="letter" x="${at(this.x(xs[best]))}" y="${at((y(lower[best]) + y(upper[best])) / 2) + 4}">${layer.letter}</text>`;
  }
}
