// Make and find elements. Every text becomes a text node, so no text can be read as HTML.

/** An element with attributes and children; a child is an element or a text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** The element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Show a sentence in an element, or hide the element. */
export function say(place, sentence) {
  place.textContent = sentence;
  place.hidden = !sentence;
}

/** Whether the visitor asked for less motion. */
export function prefersStillness() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
