// Small words for the document. Text is always set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** An element; what begins with a capital letter or is a known property is set, the rest are attributes. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Write only what is different: layout is dear. */
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
