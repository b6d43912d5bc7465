// The page: receives updates (server-sent events), keeps them, and draws the changes at most once a frame.
//
// Updates are merged at once and drawn later, so a page that draws slowly draws less often and never falls behind.
// `window.weir` counts received and drawn updates, for measurements.

import { $, write } from "./dom.js";
import { drawCluster, drawTiles, emptyReason, takeStack } from "./cluster.js";
import { drawDecisions, forgetDecisions } from "./decisions.js";
import { drawDetail, drawFigures, forgetDetail, takeDetail } from "./detail.js";
import { drawJobs } from "./jobs.js";
import { drawNodes } from "./nodes.js";
import { prepare } from "./what-if.js";
import { clock, count, duration, countOf } from "./words.js";

const CURVES_MS = 500, SILENT_MS = 4000, CLOSED_MS = 2000, RETRY_MS = 2000, ALWAYS_DRAWN = 20;
const known = { jobs: new Map(), nodes: new Map(), totals: {}, at_s: 0, now_s: 0, cut_s: null, reading: false };
const fresh = { jobs: new Set(), nodes: new Set(), decisions: [], stack: false, colours: false, recoloured: false, detail: false, totals: false };
const seen = { cluster: true, job: true, nodes: true };
const measured = (window.weir = { received: 0, drawn: 0, painted: 0, number: 0, at_s: 0 });
let source = null, receivedAt = 0, scheduled = false, curvesAt = 0, detailAt = 0, chosen = decodeURIComponent(location.hash.match(/^#job=(.+)$/)?.[1] ?? ""), chosenByUser = chosen !== "";

// ---------------------------------------------------------------- receiving

function connect() {
  source?.close();
  const query = new URLSearchParams({ job: chosen, span: $("span").value });
  source = new EventSource(`api/follow?${query}`);
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    drawStatus();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
}

function receive(news) {
  receivedAt = performance.now();
  measured.received += 1;
  if (news.whole) forgetAll();
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

/** Drop everything: the next update has the whole state. */
function forgetAll() {
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
  if (fresh.totals && (isComplete() || known.totals.allocatable)) { drawTiles(known.totals); fresh.totals = false; }
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
  if (!chosenByUser && sorted.length && chosen !== sorted[0].key && !known.jobs.has(chosen)) choose(sorted[0].key, false);
  drawStatus();
  drawEmptyNotes();
  measure();
  if (measured.drawn === ALWAYS_DRAWN) watchVisibility();
}

/** Note the update that is on the screen from the next frame on: its number, and the time of its newest fact. */
function measure() {
  const { number, at_s } = known, drawn = (measured.drawn += 1);
  requestAnimationFrame(() => Object.assign(measured, { painted: drawn, number, at_s }));
}

/** True after all messages that were stored at the start have been received. */
const isComplete = () => receivedAt > 0 && !known.reading;

/** Show a note in place of an empty list, but only after all has been read. */
function drawEmptyNotes() {
  const none = { "no-jobs": !known.jobs.size, "no-decisions": !$("decision-list").childElementCount, "no-cores": emptyReason() !== "" };
  write($("no-cores"), emptyReason());
  for (const [id, empty] of Object.entries(none)) {
    $(id).hidden = !empty || !isComplete();
    $(id).previousElementSibling.hidden = !empty || isComplete();
  }
}

function drawStatus() {
  const lost = receivedAt && performance.now() - receivedAt > (source?.readyState === EventSource.OPEN ? SILENT_MS : CLOSED_MS), line = $("status");
  const show = (kind, text) => { if (line.dataset.state !== kind) line.dataset.state = kind; if (line.textContent !== text) line.textContent = text; };
  if (lost) return show("lost", "the page's service does not answer; this is the last known state. Trying again …");
  if (!receivedAt) return show("connecting", "connecting …");
  if (known.cut_s) return show("cut", `no connection to the bus since ${clock(known.cut_s)}: the state at that time is shown. The page reconnects by itself.`);
  if (known.reading) return show("reading", `reading the log … ${countOf(known.jobs.size, "job")}`);
  const age = known.at_s ? `newest fact ${duration(Math.max(0, known.now_s - known.at_s))} ago` : "no fact yet";
  show("live", `live; ${age}; ${countOf(known.jobs.size, "job")}, ${countOf(known.nodes.size, "node")}`);
}

// ---------------------------------------------------------------- choosing

function choose(key, jump = true) {
  chosenByUser = chosenByUser || jump;
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
try { theme = localStorage.getItem("weir-theme") ?? "auto"; } catch { /* no storage: the default */ }

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  $("theme").textContent = `theme: ${theme}`;
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("weir-theme", theme); } catch { /* no storage: not kept */ }
  applyTheme();
});
dark.addEventListener("change", applyTheme);
$("span").addEventListener("change", connect);
$("filter").addEventListener("input", schedule);
/** Draw a section that is out of sight only when it comes into sight; the first draws are complete. */
function watchVisibility() {
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[target.id] = isIntersecting;
    schedule();
  }, { rootMargin: "200px" });
  for (const id of Object.keys(seen)) watcher.observe($(id));
}

setInterval(() => { drawStatus(); schedule(); }, 500);
applyTheme();
prepare();
connect();
