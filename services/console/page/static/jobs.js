// The table of jobs: one row for each job. Only changed cells are written.

import { $, attribute, el, write } from "./dom.js";
import { classOf, letterOf } from "./colours.js";
import { clock, cores, count, metricsText, duration, loss, jobName, percent, rate, seconds, tenths } from "./words.js";

const OVER = ["Succeeded", "Failed", "Cancelled"];
const COLUMNS = ["Phase", "ps", "Workers", "Done", "Time left", "Examples/s", "Loss", "Cores", "GiB", "Last pause", ""];
const NUMBERS = ["ps", "Workers", "Time left", "Examples/s", "Cores", "GiB", "Last pause"];
const rows = new Map();

export const isOver = (job) => OVER.includes(job.phase);
/** Jobs that are not over, oldest first; then the others, newest first. */
const before = (a, b) => isOver(a) - isOver(b) || (isOver(a) ? (b.finished_s ?? 0) - (a.finished_s ?? 0) : (a.asked_s ?? 0) - (b.asked_s ?? 0)) || a.uid - b.uid;
const nowAndWanted = (now, wanted) => (now === wanted ? String(now) : `${now} → ${wanted}`);

function newRow(key, choose) {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" }), name = el("span");
  const button = el("button", { class: "job-button", type: "button", onclick: () => choose(key) }, swatch, name);
  const row = el("tr", { "data-key": key }, el("th", { scope: "row" }, button));
  const cells = COLUMNS.map((label) => el("td", { class: label ? (NUMBERS.includes(label) ? "n" : null) : "why-cell", "data-label": label && label !== "Phase" ? label : null }));
  row.append(...cells);
  const phase = el("span", { class: "phase" }), level = el("i"), share = el("span"), value = el("span");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const spark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  spark.setAttribute("class", "spark"); spark.setAttribute("viewBox", "0 0 72 18"); spark.setAttribute("aria-hidden", "true");
  spark.append(path);
  cells[0].append(phase);
  cells[3].append(el("span", { class: "bar", "aria-hidden": "true" }, level), share);
  cells[6].append(value, spark);
  return { row, cells, swatch, name, phase, fill: level, share, value, path };
}

/** A small curve between its least and greatest value; empty for one value. */
function curve(values) {
  if (values.length < 2) return "";
  const least = Math.min(...values), room = Math.max(...values) - least || 1;
  return values.map((v, i) => `${i ? "L" : "M"}${((i * 70) / (values.length - 1) + 1).toFixed(1)} ${(16.5 - (15 * (v - least)) / room).toFixed(1)}`).join("");
}

function describeEnd(job) {
  const took = job.finished_s > job.asked_s ? `after ${duration(job.finished_s - job.asked_s)}, ${count(job.samples ?? 0)} examples` : "", metrics = metricsText(job.metrics);
  const result = [took, metrics && `evaluation: ${metrics}`].filter(Boolean).join(", ");
  return [result, (job.why ?? "").split("\n")[0]].filter(Boolean).join(": ");
}

function fillRow(cells, job) {
  const { row, swatch, name, phase, share, value, path } = cells, over = isOver(job);
  attribute(swatch, "class", `swatch ${classOf(job.key)}`);
  write(swatch, letterOf(job.key));
  write(name, jobName(job.key));
  write(phase, job.phase);
  attribute(phase, "data-phase", job.phase);
  const texts = {
    1: over ? "–" : nowAndWanted(job.ps ?? 0, job.wanted_ps ?? 0), 2: over ? "–" : nowAndWanted(job.workers ?? 0, job.wanted_workers ?? 0),
    4: over ? "–" : job.left_s == null ? "–" : duration(job.left_s), 5: job.speed ? rate(job.speed) : "–",
    7: job.held ? cores(job.held) : "–", 8: job.held_gib ? tenths(job.held_gib) : "–", 9: seconds(job.pause_s), 10: over ? describeEnd(job) : (job.why ?? "").split("\n")[0],
  };
  for (const [column, text] of Object.entries(texts)) {
    write(cells.cells[column], text);
    cells.cells[column].classList.toggle("empty-cell", text === "–" || text === "");
  }
  write(share, percent(job.share));
  const scale = `scaleX(${(job.share ?? 0).toFixed(4)})`;
  if (cells.fill.style.transform !== scale) cells.fill.style.transform = scale;
  write(value, loss(job.loss));
  attribute(path, "d", curve(job.losses ?? []));
  attribute(row, "title", job.asked_s ? `submitted at ${clock(job.asked_s)}, uid ${job.uid}` : null);
}

/** `changed`: keys of the jobs with rows that have changed. */
export function drawJobs(jobs, changed, chosen, wanted, choose) {
  const body = $("job-table").tBodies[0];
  for (const key of [...rows.keys()].filter((one) => !jobs.has(one))) {
    rows.get(key).row.remove();
    rows.delete(key);
  }
  for (const key of changed) {
    if (!jobs.has(key)) continue;
    if (!rows.has(key)) rows.set(key, newRow(key, choose));
    fillRow(rows.get(key), jobs.get(key));
  }
  const sorted = [...jobs.values()].sort(before);
  let place = body.firstElementChild;
  for (const job of sorted) {
    const { row } = rows.get(job.key);
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    row.hidden = wanted !== "" && !`${jobName(job.key)} ${job.phase}`.toLowerCase().includes(wanted);
    attribute(row, "aria-selected", job.key === chosen);
  }
  return sorted;
}
