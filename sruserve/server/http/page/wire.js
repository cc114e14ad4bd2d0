// What a model read for a text that is being typed, and what it would read without its state.

import { element } from "./dom.js";
import { byteLength, bytes, characters, grouped } from "./format.js";

const MAX_LINES = 5;

/** Shows the last exchanges and their sums in an element. */
export class Wire {
  constructor(place) {
    this.figure = element("strong", { class: "figure" });
    this.instead = element("span", {});
    this.ownBar = bar();
    this.otherBar = bar();
    this.own = element("span", {});
    this.other = element("span", {});
    this.size = element("p", { class: "quiet size" });
    this.log = element("ol", { class: "log" });
    place.append(
      element("h2", {}, "Read by the model just now"),
      element("p", { class: "saved" }, this.figure, " ", this.instead),
      element(
        "dl",
        { class: "sums" },
        element("dt", {}, "Characters read so far"),
        element("dd", {}, this.own, this.ownBar),
        element("dt", {}, "Without states: all of the text, each time"),
        element("dd", {}, this.other, this.otherBar),
      ),
      this.size,
      this.log,
    );
    this.reset();
  }

  /** Begin anew, with nothing read. */
  reset() {
    this.sums = { read: 0, repeated: 0 };
    this.figure.textContent = "–";
    this.instead.textContent = "Type, and see: each keystroke reads only what is new.";
    this.size.textContent = "";
    this.log.replaceChildren();
    this.#drawSums();
  }

  /**
   * Add an exchange.
   *
   * chunk: the new text; empty if the browser still had the state of this text. history: the text
   * before it. sent, received: the state that went with the chunk and the one that came back.
   */
  add(chunk, history, sent, received) {
    const read = characterCount(chunk);
    const whole = read + characterCount(history);
    this.sums.read += read;
    this.sums.repeated += whole;
    this.figure.textContent = characters(read);
    this.instead.textContent = !chunk
      ? `instead of ${grouped(whole)}: the browser had kept the state of this point.`
      : sent
        ? `instead of ${grouped(whole)}: the state stands for all that came before.`
        : "from the beginning. From now on, only what is new is read.";
    this.size.textContent = inBytes(received.length, byteLength(history + chunk));
    this.log.prepend(line(chunk, sent, received));
    while (this.log.children.length > MAX_LINES) this.log.lastChild.remove();
    this.#drawSums();
  }

  #drawSums() {
    const { read, repeated } = this.sums;
    this.own.textContent = grouped(read);
    this.other.textContent = grouped(repeated);
    const most = Math.max(repeated, 1);
    this.ownBar.style.setProperty("--share", read / most);
    this.otherBar.style.setProperty("--share", repeated / most);
  }
}

/** Bytes compared with bytes: those of a state as it is sent, and those of the text. */
function inBytes(state, text) {
  const size = `The state is ${bytes(state)} as sent, however long the text. `;
  return state < text
    ? `${size}The text is ${bytes(text)}: it would take more bytes each time.`
    : `${size}The text is ${bytes(text)} so far: a longer one would take more bytes than its state.`;
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
    element("span", {}, `→ ${bytes(byteLength(chunk))}${sent ? ` + state ${bytes(sent.length)}` : ""}`),
    element("span", { class: "back" }, `← state ${bytes(received.length)}`),
  );
}
