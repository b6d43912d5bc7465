// Decisions: the last ones of all jobs. Each opens into its reason, nodes, forecast, result and alternatives.

import { $, el, facts } from "./dom.js";
import { clock, cores, jobName, rate, seconds, size, worth } from "./words.js";

const KEPT = 60;
const shown = new Map();

const nameOf = (d) => `${d.uid}.${d.revision}`;

/** The reason, cause, nodes, forecast, result and rejected alternatives of a decision. */
export function decisionFacts(d) {
  const lost = el("ul", { class: "lost" }, ...(d.alternatives ?? []).map((o) => el("li", {}, `${size(o)}, batch ${o.batch}: ${o.why}`)));
  const places = Object.entries(d.nodes ?? {}).map(([node, roles]) => `${node}: ${roles.join(", ")}`).join("; ");
  const forecast = d.gain_s ? `${worth(d.gain_s)} a pause of ${seconds(d.cost_s ?? 0)}` : null;
  const paused = d.pause_s != null ? `a pause of ${seconds(d.pause_s)}` : null, slowed = d.slowed_s ? `${seconds(d.slowed_s)} lost while it was prepared` : null, trained = d.reaction_s != null ? `trained ${seconds(d.reaction_s)} later` : null;
  const speeds = d.speed_after != null ? `${d.speed_before != null ? `${rate(d.speed_before)} → ` : ""}${rate(d.speed_after)} examples/s` : null;
  return facts([
    ["why", d.reason], ["after", d.event], ["abandoned", d.abandoned || null],
    ["size", `${size(d)}, batch ${d.batch}, ${cores(d.cpu)} cores with the chief`], ["where", places], ["forecast", forecast],
    ["result", [trained, slowed, paused, speeds].filter(Boolean).join(", ") || null],
    ["rather than", d.alternatives?.length ? lost : null],
  ]);
}

function row(d, choose) {
  const why = d.abandoned ? el("span", { class: "given-up" }, `abandoned: ${d.abandoned.split("\n")[0]}`) : el("span", { class: "why" }, d.reason.split("\n")[0]);
  const summary = el("summary", {}, el("span", { class: "when" }, clock(d.at_s)), el("b", {}, jobName(d.key)), ` ${size(d)} `, why);
  const body = el("div"), details = el("details", {}, summary, body);
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    body.append(decisionFacts(d), el("button", { type: "button", onclick: () => choose(d.key) }, `timeline of ${jobName(d.key)}`));
  });
  return el("li", { "data-decision": nameOf(d) }, details);
}

export function drawDecisions(decisions, choose) {
  const list = $("decision-list");
  for (const d of decisions) {
    const item = row(d, choose), before = shown.get(nameOf(d));
    if (before) before.replaceWith(item);
    else list.prepend(item);
    shown.set(nameOf(d), item);
  }
  while (list.childElementCount > KEPT) {
    shown.delete(list.lastElementChild.dataset.decision);
    list.lastElementChild.remove();
  }
}

export function forgetDecisions() {
  shown.clear();
  $("decision-list").replaceChildren();
}
