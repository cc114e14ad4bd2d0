// What was sent for a text that is being typed, shown beside it.

import { element } from "./dom.js";
import { byteLength, bytes, characters, grouped } from "./format.js";

const MAX_LINES = 5;

/** Shows the last exchanges and their sums in an element. */
export class Wire {
  constructor(place) {
    this.saved = element("strong", { class: "figure" });
    this.history = element("span", {});
    this.ownBar = bar();
    this.otherBar = bar();
    this.own = element("span", {});
    this.other = element("span", {});
    this.states = element("span", {});
    this.log = element("ol", { class: "log" });
    place.append(
      element("h2", {}, "What was sent"),
      element("p", { class: "saved" }, this.saved, " ", this.history),
      element(
        "dl",
        { class: "sums" },
        element("dt", {}, "Characters read by the model"),
        element("dd", {}, this.own, this.ownBar),
        element("dt", {}, "If each request repeated the text"),
        element("dd", {}, this.other, this.otherBar),
        element("dt", {}, "States sent in place of old text"),
        element("dd", {}, this.states),
      ),
      this.log,
    );
    this.reset();
  }

  /** Begin anew, with nothing sent. */
  reset() {
    this.sums = { read: 0, repeated: 0, states: 0 };
    this.saved.textContent = "0 characters";
    this.history.textContent = "so far. Type, and see: nothing is sent twice.";
    this.log.replaceChildren();
    this.#drawSums();
  }

  /**
   * Add an exchange.
   *
   * chunk: the new text. history: the text before it, which was not sent. sent, received: the
   * state that went with the chunk and the one that came back, or null.
   */
  add(chunk, history, sent, received) {
    const before = characterCount(history);
    if (chunk) {
      this.sums.read += characterCount(chunk);
      this.sums.repeated += characterCount(chunk) + before;
    }
    this.saved.textContent = characters(before);
    this.history.textContent = sent
      ? `of earlier text not sent again, and not read again. The state took their place: ` +
        `${bytes(sent.length)}, however long the text.`
      : "of earlier text.";
    this.addState(sent);
    this.log.prepend(line(chunk, sent, received));
    while (this.log.children.length > MAX_LINES) this.log.lastChild.remove();
  }

  /** Count a state that was sent, or null; the end of a text sends one alone. */
  addState(state) {
    this.sums.states += state ? state.length : 0;
    this.#drawSums();
  }

  #drawSums() {
    const { read, repeated, states } = this.sums;
    this.own.textContent = grouped(read);
    this.other.textContent = grouped(repeated);
    this.states.textContent = bytes(states);
    const most = Math.max(repeated, 1);
    this.ownBar.style.setProperty("--share", read / most);
    this.otherBar.style.setProperty("--share", repeated / most);
  }
}

function characterCount(text) {
  return Array.from(text).length;
}

function bar() {
  return element("span", { class: "bar" });
}

function line(chunk, sent, received) {
  if (!chunk) return element("li", {}, "nothing sent: the state was kept here");
  const shown = chunk.length > 24 ? `${chunk.slice(0, 23)}…` : chunk;
  return element(
    "li",
    {},
    element("code", {}, shown.replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce")),
    element("span", {}, `${bytes(byteLength(chunk))}${sent ? ` + state ${bytes(sent.length)}` : ""}`),
    element("span", { class: "back" }, `← state ${bytes(received.length)}`),
  );
}
