// Helpers for the document. Text is always set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Create an element. `on...` attributes are event listeners; null and false ones are left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Write a text only if it has changed: layout takes time. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function attribute(node, name, value) {
  if (value == null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function facts(pairs, className = "facts") {
  const list = el("dl", { class: className });
  for (const [name, value] of pairs) {
    if (value != null && value !== "") list.append(el("dt", {}, name), el("dd", {}, value));
  }
  return list;
}
