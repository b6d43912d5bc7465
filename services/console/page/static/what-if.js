// The outcome of a proposed job. The page's service runs the allocator's own decision on a copy of the state.

import { $, el } from "./dom.js";

async function ask(event) {
  event.preventDefault();
  const answer = $("what-if-answer"), button = $("what-if-form").querySelector("button");
  button.disabled = true;
  answer.replaceChildren(el("p", {}, "asking …"));
  try {
    const response = await fetch("api/what-if", { method: "POST", body: $("proposal").value, headers: { "Content-Type": "text/plain" } });
    if (!response.ok) throw new Error(`the page's service refuses: ${await response.text()}`);
    const { says = [], refused = [] } = await response.json();
    const why = refused.length ? [el("p", { class: "refused" }, "It would be refused:"), ...refused.map((reason) => el("p", { class: "refused" }, `– ${reason}`))] : [];
    answer.replaceChildren(...why, ...says.map((line) => el("p", {}, line)));
  } catch (error) {
    answer.replaceChildren(el("p", { class: "refused" }, `No answer: ${error.message}`));
  } finally {
    button.disabled = false;
  }
}

export async function prepare() {
  $("what-if-form").addEventListener("submit", ask);
  try {
    const response = await fetch("api/example");
    if (response.ok && !$("proposal").value) $("proposal").value = await response.text();
  } catch { /* the status line shows that the service does not answer */ }
}
