// The page: hears what is new (server-sent events), keeps it, and draws at most once a frame what has changed.
//
// What comes is merged at once and drawn later, so that a page that is slow to draw draws less often and falls behind by
// nothing. `window.weir` counts what came and what was drawn, for those who measure.

import { $, write } from "./dom.js";
import { drawCluster, drawTiles, lacking, takeStack } from "./cluster.js";
import { drawDecisions, forgetDecisions } from "./decisions.js";
import { drawDetail, drawFigures, forgetDetail, takeDetail } from "./detail.js";
import { drawJobs } from "./jobs.js";
import { drawNodes } from "./nodes.js";
import { prepare } from "./what-if.js";
import { clock, count, lasting, several } from "./words.js";

const CURVES_MS = 500, SILENT_MS = 4000, CLOSED_MS = 2000, AGAIN_MS = 2000, UNSEEN = 20;
const known = { jobs: new Map(), nodes: new Map(), totals: {}, at_s: 0, now_s: 0, cut_s: null, reading: false };
const fresh = { jobs: new Set(), nodes: new Set(), decisions: [], stack: false, colours: false, recoloured: false, detail: false, totals: false };
const seen = { cluster: true, job: true, nodes: true };
const measured = (window.weir = { received: 0, drawn: 0, painted: 0, number: 0, at_s: 0 });
let source = null, heardAt = 0, scheduled = false, curvesAt = 0, detailAt = 0, chosen = decodeURIComponent(location.hash.match(/^#job=(.+)$/)?.[1] ?? ""), byHand = chosen !== "";

// ---------------------------------------------------------------- hearing

function connect() {
  source?.close();
  const query = new URLSearchParams({ job: chosen, span: $("span").value });
  source = new EventSource(`api/follow?${query}`);
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    state();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
  };
}

function take(news) {
  heardAt = performance.now();
  measured.received += 1;
  if (news.whole) forget();
  Object.assign(known, { at_s: news.at_s, now_s: news.now_s, cut_s: news.cut_s ?? null, reading: news.reading ?? false });
  if (news.totals) { known.totals = news.totals; fresh.totals = true; }
  merge(news.nodes, known.nodes, fresh.nodes, (node) => node.name);
  merge(news.jobs, known.jobs, fresh.jobs, (job) => job.key);
  for (const name of news.gone_nodes ?? []) known.nodes.delete(name);
  for (const key of news.gone_jobs ?? []) known.jobs.delete(key);
  fresh.decisions.push(...(news.decisions ?? []));
  if (news.stack) { fresh.stack = true; if (takeStack(news.stack)) fresh.colours = fresh.recoloured = true; }
  if (news.detail && news.detail.key === chosen) { takeDetail(news.detail); fresh.detail = true; }
  known.number = news.number;
  schedule();
}

function merge(sent, into, changed, name) {
  for (const one of sent ?? []) { into.set(name(one), one); changed.add(name(one)); }
}

/** What is told next is the whole. */
function forget() {
  known.jobs.clear(); known.nodes.clear();
  fresh.decisions = [];
  forgetDecisions(); forgetDetail();
}

// ---------------------------------------------------------------- drawing

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

function draw() {
  scheduled = false;
  const now = performance.now(), everyJob = fresh.colours;
  if (fresh.totals && (whole() || known.totals.allocatable)) { drawTiles(known.totals); fresh.totals = false; }
  if (fresh.decisions.length) drawDecisions(fresh.decisions, choose);
  if (seen.nodes) {
    drawNodes(known.nodes, fresh.nodes, fresh.recoloured);
    Object.assign(fresh, { nodes: new Set(), recoloured: false });
  }
  const sorted = drawJobs(known.jobs, everyJob ? known.jobs.keys() : fresh.jobs, chosen, $("filter").value.trim().toLowerCase(), choose);
  if (fresh.stack && seen.cluster && now - curvesAt >= CURVES_MS) { drawCluster(); fresh.stack = false; curvesAt = now; }
  if (fresh.detail && (seen.job || $("job").hidden) && now - detailAt >= CURVES_MS) { drawDetail(known.jobs.get(chosen), known.now_s); fresh.detail = false; detailAt = now; }
  if (!known.jobs.has(chosen)) $("job").hidden = true;
  else if (fresh.jobs.has(chosen)) drawFigures(known.jobs.get(chosen));
  Object.assign(fresh, { jobs: new Set(), decisions: [], colours: false });
  if (!byHand && sorted.length && chosen !== sorted[0].key && !known.jobs.has(chosen)) choose(sorted[0].key, false);
  state();
  absence();
  measure();
  if (measured.drawn === UNSEEN) watch();
}

/** Which news stands on the screen, once the next frame begins: its number, and when its newest fact was stored. */
function measure() {
  const { number, at_s } = known, drawn = (measured.drawn += 1);
  requestAnimationFrame(() => Object.assign(measured, { painted: drawn, number, at_s }));
}

/** Whether all that was stored when the page began has been told. */
const whole = () => heardAt > 0 && !known.reading;

/** That there is none of something is said when all is read, and not before. */
function absence() {
  const none = { "no-jobs": !known.jobs.size, "no-decisions": !$("decision-list").childElementCount, "no-cores": lacking() !== "" };
  write($("no-cores"), lacking());
  for (const [id, empty] of Object.entries(none)) {
    $(id).hidden = !empty || !whole();
    $(id).previousElementSibling.hidden = !empty || whole();
  }
}

function state() {
  const lost = heardAt && performance.now() - heardAt > (source?.readyState === EventSource.OPEN ? SILENT_MS : CLOSED_MS), line = $("status");
  const say = (kind, text) => { if (line.dataset.state !== kind) line.dataset.state = kind; if (line.textContent !== text) line.textContent = text; };
  if (lost) return say("lost", "the page's service does not answer; what is here is as it was last told. Trying again …");
  if (!heardAt) return say("connecting", "connecting …");
  if (known.cut_s) return say("cut", `cut off from the bus since ${clock(known.cut_s)}: what is here is as it was then. It heals by itself.`);
  if (known.reading) return say("reading", `reading what happened so far … ${several(known.jobs.size, "job")}`);
  const age = known.at_s ? `newest fact ${lasting(Math.max(0, known.now_s - known.at_s))} ago` : "no fact yet";
  say("live", `live; ${age}; ${several(known.jobs.size, "job")}, ${several(known.nodes.size, "node")}`);
}

// ---------------------------------------------------------------- choosing

function choose(key, jump = true) {
  byHand = byHand || jump;
  if (key !== chosen) {
    chosen = key;
    forgetDetail();
    if (jump) history.replaceState(null, "", `#job=${encodeURIComponent(key)}`);
    connect();
  }
  if (jump) {
    $("job").hidden = false;
    $("job").scrollIntoView({ block: "start" });
  }
}

const THEMES = ["auto", "light", "dark"], dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = localStorage.getItem("weir-theme") ?? "auto"; } catch { /* it is forgotten, then */ }

function paint() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  $("theme").textContent = `theme: ${theme}`;
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("weir-theme", theme); } catch { /* it is forgotten, then */ }
  paint();
});
dark.addEventListener("change", paint);
$("span").addEventListener("change", connect);
$("filter").addEventListener("input", schedule);
/** What is out of sight is drawn when it comes into sight: first when all has been drawn once. */
function watch() {
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[target.id] = isIntersecting;
    schedule();
  }, { rootMargin: "200px" });
  for (const id of Object.keys(seen)) watcher.observe($(id));
}

setInterval(() => { state(); schedule(); }, 500);
paint();
prepare();
connect();
