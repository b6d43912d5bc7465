// The cluster: its cores and memory in numbers, and the held cores over time.

import { $, el, write } from "./dom.js";
import { assign, classOf, fillOf, letterOf } from "./colours.js";
import { Timeline } from "./timeline.js";
import { clock, cores, gib, jobName, percent } from "./words.js";

let stack = null, timeline = null;
const tiles = new Map();

const TILES = [
  ["cores of all nodes", (t) => cores(t.allocatable ?? 0)], ["held by jobs", (t) => cores(t.ours ?? 0), (t) => `, ${percent(t.held_share)}`],
  ["used by jobs, as reported", (t) => cores(t.used ?? 0), (t) => `, ${percent(t.used_share)}`], ["held by other pods", (t) => cores(t.others ?? 0)],
  ["free", (t) => cores(t.free ?? 0), (t) => (t.closed ? `, ${cores(t.closed)} of them on closed nodes` : "")],
  ["memory held by jobs", (t) => gib(t.ours_gib ?? 0), (t) => `, ${percent(t.held_gib_share)} of ${gib(t.allocatable_gib ?? 0)}`],
  ["memory used by jobs, as reported", (t) => gib(t.used_gib ?? 0), (t) => `, ${percent(t.used_gib_share)}`],
  ["memory free", (t) => gib(t.free_gib ?? 0), (t) => `, ${gib(t.others_gib ?? 0)} held by other pods`],
];

export function drawTiles(totals) {
  for (const [name, value, more] of TILES) {
    if (!tiles.has(name)) {
      tiles.set(name, [el("b"), el("span")]);
      $("tiles").append(el("div", { class: "tile" }, ...tiles.get(name)));
    }
    const [number, label] = tiles.get(name);
    write(number, value(totals));
    write(label, `${/^(cores|memory)/.test(name) ? "" : "cores "}${name}${more?.(totals) ?? ""}`);
  }
}

/** Take over the use of cores over time. Returns true if the jobs with a colour have changed. */
export function takeStack(sent) {
  const keys = (sent.jobs ?? []).map((band) => band.job);
  const same = keys.length === (stack?.jobs ?? []).length && keys.every((key) => letterOf(key));
  stack = { times: [], jobs: [], rest: [], others: [], free: [], allocatable: [], used: [], ...sent };
  assign(keys);
  return !same;
}

function describeTime(time) {
  const i = stack.times.findLastIndex((t) => t <= time);
  if (i < 0) return "";
  const jobs = stack.jobs.filter((band) => band.cores[i] > 0).map((band) => `${letterOf(band.job)} ${jobName(band.job)} ${cores(band.cores[i])}`);
  if (stack.rest[i] > 0) jobs.push(`other jobs ${cores(stack.rest[i])}`);
  return `${clock(stack.times[i])}; cores: ${[...jobs, `others ${cores(stack.others[i])}`, `free ${cores(stack.free[i])}`, `of ${cores(stack.allocatable[i])}; used ${cores(stack.used[i])}`].join(", ")}`;
}

function bands() {
  let lower = stack.times.map(() => 0);
  const layers = [];
  const addLayer = (values, more) => {
    if (!values.some((value) => value > 0)) return;
    const upper = lower.map((base, i) => base + values[i]);
    layers.push({ kind: "area", xs: stack.times, lower, upper, ...more });
    lower = upper;
  };
  for (const band of stack.jobs) addLayer(band.cores, { colour: fillOf(band.job), letter: letterOf(band.job) });
  addLayer(stack.rest, { colour: "var(--rest)" });
  addLayer(stack.others, { colour: "var(--others)", pattern: true });
  return layers;
}

/** The reason for an empty chart, or for one without held cores; otherwise empty. */
export function emptyReason() {
  if (!stack || stack.times.length < 2) return "Drawn after the next report of a node.";
  return stack.jobs.length || stack.rest.some((value) => value > 0) ? "" : "No job has held cores in this span; one is drawn as soon as its pods are on nodes.";
}

export function drawCluster() {
  if (!stack || stack.times.length < 2) return;
  timeline ??= new Timeline($("cluster-plot"), "cores held over time", $("cluster-readout"), describeTime);
  const points = (values) => stack.times.map((time, i) => [time, values[i]]), most = Math.max(...stack.allocatable);
  timeline.draw({
    x: [stack.times[0], stack.times.at(-1)],
    panels: [{
      unit: "cores", height: 240, most, ends: [[stack.allocatable.at(-1), "all"], [stack.used.at(-1), "used"]],
      layers: [...bands(), { kind: "steps", points: points(stack.allocatable), colour: "var(--ink)" }, { kind: "steps", points: points(stack.used), colour: "var(--ink)", dash: "2 3" }],
    }],
  });
  legend();
}

function legend() {
  const rows = stack.jobs.map((band) => [classOf(band.job), letterOf(band.job), `${jobName(band.job)} ${cores(band.cores.at(-1))}`]);
  if (stack.rest.some((value) => value > 0)) rows.push(["rest", "", `other jobs ${cores(stack.rest.at(-1))}`]);
  rows.push(["others", "", `others ${cores(stack.others.at(-1))}`], ["free", "", `free ${cores(stack.free.at(-1))}`]);
  $("legend").replaceChildren(...rows.map(([name, letter, text]) => el("li", {}, el("span", { class: `swatch ${name}`, "aria-hidden": "true" }, letter), `${text}`)));
}
