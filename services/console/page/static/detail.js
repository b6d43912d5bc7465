// One job on one time axis: tasks, speed, loss, cores; pauses as bands, decisions as marks that open.

import { $, attribute, el, write } from "./dom.js";
import { decisionFacts } from "./decisions.js";
import { isOver } from "./jobs.js";
import { Timeline } from "./timeline.js";
import { clock, cores, count, cpuTimes, metricsText, gib, duration, loss, jobName, percent, rate, seconds, size } from "./words.js";

const MOST = 2048, NEAR = 26;
let story = null, timeline = null, opened = null, marked = "";

/** Append the sent rows to the known ones. A field that was not sent has not changed. */
export function takeDetail(detail) {
  if (!story || story.key !== detail.key || story.uid !== detail.uid) story = { key: detail.key, uid: detail.uid, reports: [], held: [], stretches: [], decisions: [], outcomes: [], marks: [] };
  for (const name of ["reports", "held"]) {
    const sent = detail[name] ?? {};
    story[name] = sent.fresh ? sent.rows ?? [] : story[name].concat(sent.rows ?? []).slice(-MOST);
  }
  for (const name of ["stretches", "decisions", "outcomes", "marks"]) if (detail[name]) story[name] = detail[name];
  for (const name of ["cpu_hours", "used_cpu_hours", "off_s", "lost", "saves", "save_cost_s"]) story[name] = detail[name];
}

export function forgetDetail() {
  story = null; opened = null; marked = "";
  $("job-decision").hidden = true;
}

const lastAt = (rows, time) => rows.findLast((row) => row[0] <= time);
const stretchAt = (time) => story.stretches.findLast((s) => s.resumed_s <= time && (s.ended_s == null || time <= s.ended_s));

function describeTime(time) {
  const report = lastAt(story.reports, time), runs = stretchAt(time), held = lastAt(story.held, time);
  const parts = [clock(time), runs ? `generation ${runs.generation}${runs.workers != null ? `: ${size({ ps: runs.ps ?? 0, workers: runs.workers })}` : ""}` : "does not train"];
  if (report && runs) parts.push(`${rate(report[1])} examples/s`, `loss ${loss(report[2])}`, report[3] != null ? `${cores(report[3])} cores used` : "");
  if (held) parts.push(`${cores(held[1])} cores held`);
  return parts.filter(Boolean).join("; ");
}

const steps = (field) => story.stretches.flatMap((s) => [[s.resumed_s, s[field] ?? null], [s.ended_s ?? Infinity, null]]);
const until = (points, end) => points.map(([time, value]) => [Math.min(time, end), value]);
/** Steps up to an end. Later points, such as pods that leave after the job, are not on its axis. */
const upTo = (points, end) => [...points.filter(([time]) => time <= end), [end, lastAt(points, end)?.[1] ?? null]];
const most = (...series) => Math.max(0, ...series.flat().map(([, value]) => value ?? 0));

/** The points of a column, with gaps between generations. */
function withGaps(column) {
  const points = [];
  let generation = null;
  for (const row of story.reports) {
    if (generation !== null && row[4] !== generation) points.push([row[0], null]);
    generation = row[4];
    points.push([row[0], row[column]]);
  }
  return points;
}

function panels(job, from, to) {
  const ps = until(steps("ps"), to), workers = until(steps("workers"), to);
  const speed = withGaps(1), losses = withGaps(2), used = withGaps(3), held = upTo(story.held, to);
  const last = story.stretches.at(-1), now = last && last.ended_s == null;
  const end = (name, value) => (value == null ? [] : [[value, now ? `${name} ${value}` : name]]);
  const seen = (job.finished_s && story.reports.at(-1)?.[0]) || to; // its pods leave one by one after its end
  const heldLast = lastAt(story.held, seen)?.[1], usedLast = used.findLast(([, cores]) => cores > 0)?.[1];
  const height = window.innerWidth < 760 ? 74 : 92, yet = isOver(job) ? "" : " yet";
  return [
    { unit: "tasks", none: `no task has trained${yet}`, height, whole: true, pauses: true, most: most(ps, workers), ends: [...end("workers", last?.workers), ...end("ps", last?.ps)],
      layers: [{ kind: "steps", points: workers, colour: "var(--job-0)" }, { kind: "steps", points: ps, colour: "var(--job-5)", dash: "6 3" }] },
    { unit: "examples/s", none: `no speed${yet}`, height, most: most(speed), layers: [{ kind: "line", points: speed, colour: "var(--job-2)" }] },
    { unit: "loss", none: `no loss${yet}`, height, most: most(losses), layers: [{ kind: "line", points: losses, colour: "var(--job-3)" }] },
    { unit: "cores", none: `no cores held${yet}`, height, most: most(held, used), ends: [...(heldLast ? [[heldLast, "held"]] : []), ...(usedLast ? [[usedLast, "used"]] : [])],
      layers: [{ kind: "steps", points: held, colour: "var(--rest)" }, { kind: "line", points: used, colour: "var(--job-0)", dash: "4 2" }] },
  ];
}

/** The present size of a job; before its first tasks, the decided size. */
function describeSize(job) {
  const now = { ps: job.ps ?? 0, workers: job.workers ?? 0 }, coming = story.decisions.at(-1);
  if (job.batch) return `${size(now)}, batch ${job.batch}`;
  return coming && job.wanted_ps ? `none yet; ${size(coming)}, batch ${coming.batch} decided` : "no tasks";
}

/** The reason for charts without speed and loss; empty after the first report. */
function noReportReason(job) {
  const why = (job.why ?? "").split("\n")[0], since = story.stretches.at(-1)?.resumed_s;
  if (story.reports.length) return "";
  if (isOver(job)) return "It ended before its first report: its speed and loss are unknown.";
  if (since) return `No speed yet: it has trained since ${clock(since)}, and its first report has not come yet.`;
  if (job.phase === "Starting") return `No speed yet${why ? `: ${why}` : ""}.`;
  return `No speed yet: it has no tasks${why ? `: ${why}` : "."}`;
}

/** Draw the figures from the row of the table of jobs, and together with it: both always agree. */
export function drawFigures(job) {
  if ($("job").hidden || !story || story.key !== job.key) return;
  const used = (amount) => (story.reports.length ? `, ${amount} used` : "");
  const pairs = [
    ["size", describeSize(job)], ["generation", job.generation || null],
    ["done", job.total ? `${percent(job.share)} (${count(job.samples ?? 0)} of ${count(job.total)} examples)` : null],
    ["evaluation", metricsText(job.metrics) || null], ["epochs", `${job.epoch ?? 0} of ${job.epochs ?? 0}`], ["time left", job.left_s == null ? null : `${duration(job.left_s)} at the present speed`],
    ["CPU time", cpuTimes(story.cpu_hours, story.reports.length ? story.used_cpu_hours : null)], ["memory", job.held_gib ? `${gib(job.held_gib)} held${used(gib(job.used_gib ?? 0))}` : null], ["pauses", job.pauses ? `${count(job.pauses)}: ${seconds(job.paused_s)} in total, the last ${seconds(job.pause_s)}` : story.stretches.length ? "none" : null], ["cluster off", story.off_s ? duration(story.off_s) : null],
    ["applied twice", story.lost ? `${count(story.lost)} examples` : null], ["priority", job.priority || null], ["policy", job.policy || null],
  ];
  $("job-figures").replaceChildren(...pairs.filter(([, value]) => value != null).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

/** Each decision with its outcome. */
function decisionsWithOutcomes() {
  const outcomes = new Map(story.outcomes.map((outcome) => [outcome.revision, outcome]));
  return story.decisions.map((decision) => ({ ...decision, ...outcomes.get(decision.revision) }));
}

/** Marks that are close together are one button, which opens them all. */
function groupMarks() {
  const groups = [];
  for (const decision of decisionsWithOutcomes()) {
    const x = timeline.x(decision.at_s), last = groups.at(-1);
    if (last && x - last.x < NEAR) last.decisions.push(decision);
    else groups.push({ x, decisions: [decision] });
  }
  return groups;
}

function drawMarks() {
  const groups = groupMarks(), seen = JSON.stringify([groups.map((g) => [Math.round(g.x), g.decisions.map((d) => d.revision + (d.abandoned ?? ""))]), opened]);
  if (seen === marked) return;
  marked = seen;
  const focused = document.activeElement?.dataset?.group;
  $("job-marks").replaceChildren(...groups.map((group) => {
    const last = group.decisions.at(-1), name = String(group.decisions[0].revision), many = group.decisions.length;
    const button = el("button", { type: "button", "data-group": name, "aria-expanded": String(opened === name), class: last.abandoned ? "gone" : null,
      "aria-label": `${many > 1 ? `${many} decisions, the last ` : "decision "}at ${clock(last.at_s)}: ${size(last)}: ${last.reason}`, title: `${clock(last.at_s)}: ${size(last)}: ${last.reason}`,
      onclick: () => { opened = opened === name ? null : name; drawMarks(); drawOpened(); } }, many > 1 ? `▾${many}` : last.abandoned ? "✕" : "▾");
    button.style.left = `${group.x}px`;
    return button;
  }));
  if (focused) $("job-marks").querySelector(`[data-group="${focused}"]`)?.focus();
}

function drawOpened() {
  const box = $("job-decision"), group = groupMarks().find((g) => String(g.decisions[0].revision) === opened);
  box.hidden = !group;
  if (!group) return;
  box.replaceChildren(...[...group.decisions].reverse().flatMap((d) => [el("h3", {}, `${clock(d.at_s)}: ${size(d)} (generation ${d.generation}, revision ${d.revision})`), decisionFacts(d)]));
}

function drawEvents() {
  const list = $("job-events").querySelector("ol"), key = story.marks.length ? `${story.marks.length}.${story.marks.at(-1)[0]}` : "";
  $("job-events").hidden = !story.marks.length;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...[...story.marks].reverse().map(([time, text]) => el("li", {}, el("span", { class: "when" }, clock(time)), text)));
}

export function drawDetail(job, now) {
  $("job").hidden = !job || !story || story.key !== job.key;
  if ($("job").hidden) return;
  timeline ??= new Timeline($("job-plot"), "the job over time", $("job-readout"), describeTime);
  write($("job-name"), `Timeline of ${jobName(job.key)}`);
  write($("job-phase"), `${job.phase}; shaded: pauses; ▾ decisions, which open`);
  drawFigures(job);
  write($("job-word"), noReportReason(job));
  $("job-word").hidden = !noReportReason(job);
  const ended = story.stretches.at(-1)?.ended_s; // the time at which it was stored, as all times here
  const to = ended || job.finished_s || now, first = story.stretches[0]?.resumed_s ?? to;
  const from = Math.min(job.asked_s || first, first, to - 1);
  const pauses = story.stretches.filter((s) => s.pause_s).map((s) => [s.resumed_s - s.pause_s, s.resumed_s, seconds(s.pause_s)]);
  timeline.draw({ x: [from, to], panels: panels(job, from, to), pauses, marks: story.decisions.map((d) => d.at_s) });
  attribute($("job-plot"), "data-points", story.reports.length);
  drawMarks();
  drawEvents();
}
