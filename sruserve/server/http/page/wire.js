// What went over the wire, beside a text that is being typed.

import { element } from "./dom.js";
import { byteLength, bytes } from "./format.js";

const MAX_LINES = 5;

/** Shows the last exchanges and their sums in an element. */
export class Wire {
  #sent = 0;
  #repeated = 0;

  constructor(place) {
    this.saved = element("strong", { class: "figure" }, "0 B");
    this.history = element("span", {}, "of old text not sent again");
    this.ownBar = bar();
    this.otherBar = bar();
    this.own = element("span", {}, "0 B");
    this.other = element("span", {}, "0 B");
    this.log = element("ol", { class: "log" });
    this.empty = element("p", { class: "quiet" }, "Nothing was sent yet.");
    place.append(
      element("h2", {}, "On the wire"),
      element("p", { class: "saved" }, this.saved, " ", this.history),
      element(
        "dl",
        { class: "sums" },
        element("dt", {}, "Text sent so far"),
        element("dd", {}, this.own, this.ownBar),
        element("dt", {}, "If each request repeated it"),
        element("dd", {}, this.other, this.otherBar),
      ),
      this.log,
      this.empty,
    );
  }

  /**
   * Add an exchange.
   *
   * chunk: the new text. history: the text before it, which was not sent. sent, received: the
   * state that went with the chunk and the one that came back, or null.
   */
  add(chunk, history, sent, received) {
    const size = byteLength(chunk);
    const before = byteLength(history);
    if (chunk) {
      this.#sent += size;
      this.#repeated += size + before;
    }
    this.saved.textContent = bytes(before);
    this.history.textContent = sent
      ? `of old text not sent again: ${bytes(sent.length)} of state stand for it, and for any text`
      : "of old text not sent again";
    this.own.textContent = bytes(this.#sent);
    this.other.textContent = bytes(this.#repeated);
    const most = Math.max(this.#repeated, 1);
    this.ownBar.style.setProperty("--share", this.#sent / most);
    this.otherBar.style.setProperty("--share", this.#repeated / most);
    this.empty.hidden = true;
    this.log.prepend(line(chunk, size, sent, received));
    while (this.log.children.length > MAX_LINES) this.log.lastChild.remove();
  }
}

function bar() {
  return element("span", { class: "bar" });
}

function line(chunk, size, sent, received) {
  if (!chunk) return element("li", {}, "nothing sent: the state was kept here");
  const shown = chunk.length > 24 ? `${chunk.slice(0, 23)}…` : chunk;
  return element(
    "li",
    {},
    element("code", {}, shown.replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce")),
    element("span", {}, `${bytes(size)}${sent ? ` + state ${bytes(sent.length)}` : ""}`),
    element("span", { class: "back" }, `← state ${bytes(received.length)}`),
  );
}
