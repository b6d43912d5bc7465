// The nodes: large tiles for few nodes, small tiles for many.

import { $, attribute, el, write } from "./dom.js";
import { classOf, letterOf } from "./colours.js";
import { cores, gib, jobName, countOf, tenths } from "./words.js";

const LARGE_MOST = 48;
const tiles = new Map();
let dense = false, current = null;

const held = (node) => Object.values(node.load ?? {}).reduce((sum, each) => sum + each, 0);

function describeNode(node) {
  const jobs = Object.entries(node.load ?? {}).map(([key, amount]) => `${jobName(key)} ${cores(amount)}`);
  const closed = node.closed ? `; ${node.closed}` : "";
  return `${node.name}: ${cores(node.cpu)} cores; jobs ${jobs.join(", ") || "none"}; others ${cores(node.others ?? 0)}; free ${cores(node.free ?? 0)}; memory: jobs ${gib(node.ours_gib ?? 0)}, others ${gib(node.others_gib ?? 0)}, free ${gib(node.free_gib ?? 0)} of ${gib(node.memory_gib)}${closed}`;
}

function newTile(node, show) {
  const name = el("b"), free = el("span"), load = el("div", { class: "load", "aria-hidden": "true" });
  const memory = el("span"), filled = el("i");
  const tile = el("div", { class: "node", role: "img", tabindex: "-1", "data-name": node.name });
  tile.append(el("p", {}, name, free), load, el("p", { class: "memory" }, memory, el("span", { class: "level", "aria-hidden": "true" }, filled)));
  tile.addEventListener("focus", () => { current = node.name; show(node.name); });
  tile.addEventListener("pointerenter", () => show(node.name));
  return { tile, name, free, load, memory, filled };
}

function bars(parts, node) {
  const pieces = Object.entries(node.load ?? {}).map(([key, amount]) => [classOf(key), letterOf(key), amount]);
  if (node.others) pieces.push(["others", "", node.others]);
  const total = Math.max(node.cpu, held(node) + (node.others ?? 0)) || 1;
  parts.load.replaceChildren(...pieces.map(([name, letter, amount]) => {
    const piece = el("i", { class: name }, letter);
    piece.style.width = `${(100 * amount) / total}%`;
    return piece;
  }));
}

function fillTile(parts, node) {
  const { tile, name, free } = parts;
  attribute(tile, "aria-label", describeNode(node));
  attribute(tile, "data-closed", node.closed || null);
  if (dense) {
    const total = node.cpu || 1, ours = (100 * held(node)) / total;
    tile.style.setProperty("--ours", `${ours.toFixed(1)}%`);
    tile.style.setProperty("--held", `${(ours + (100 * (node.others ?? 0)) / total).toFixed(1)}%`);
    return;
  }
  write(name, node.name);
  write(free, node.closed ? node.closed : `${cores(node.free ?? 0)} of ${cores(node.cpu)} free`);
  write(parts.memory, `jobs: ${tenths(node.ours_gib ?? 0)} of ${gib(node.memory_gib)}`);
  parts.filled.style.width = `${((100 * (node.ours_gib ?? 0)) / (node.memory_gib || 1)).toFixed(1)}%`;
  bars(parts, node);
}

/** Names are ordered by their numbers: node-2 before node-10. */
const order = new Intl.Collator("en", { numeric: true });
let shown = null, known = new Map();

function show(name) {
  shown = name;
  const node = known.get(name);
  write($("node-readout"), node ? describeNode(node) : "");
}

function rebuild(nodes) {
  dense = nodes.size > LARGE_MOST;
  const map = $("node-map");
  map.classList.toggle("dense", dense);
  tiles.clear();
  const sorted = [...nodes.values()].sort((a, b) => order.compare(a.name, b.name));
  for (const node of sorted) tiles.set(node.name, newTile(node, show));
  for (const node of sorted) fillTile(tiles.get(node.name), node);
  map.replaceChildren(...[...tiles.values()].map((parts) => parts.tile));
  const first = tiles.get(current) ?? tiles.values().next().value;
  if (first) first.tile.tabIndex = 0;
}

export function drawNodes(nodes, changed, coloursChanged) {
  known = nodes;
  const others = [...tiles.keys()].some((name) => !nodes.has(name)) || [...nodes.keys()].some((name) => !tiles.has(name));
  if (others) rebuild(nodes);
  else for (const name of coloursChanged && !dense ? nodes.keys() : changed) if (nodes.has(name)) fillTile(tiles.get(name), nodes.get(name));
  write($("node-count"), `${countOf(nodes.size, "node")}; ${dense ? "filled from below: held by jobs, then by other pods" : "cores, and memory"}`);
  if (shown && changed.has(shown)) show(shown);
}

$("node-map").addEventListener("keydown", (event) => {
  const all = [...$("node-map").children], here = all.indexOf(document.activeElement);
  if (here < 0) return;
  const across = all.filter((tile) => tile.offsetTop === all[0].offsetTop).length;
  const way = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
  const next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : way ? here + way : -1;
  if (next < 0 || next >= all.length) return;
  event.preventDefault();
  all[here].tabIndex = -1;
  all[next].tabIndex = 0;
  all[next].focus();
});
