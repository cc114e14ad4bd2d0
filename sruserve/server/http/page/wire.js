// What a model read for a text that is being typed, and what it would read without its state.

import { element } from "./dom.js";
import { byteLength, bytes, characters, grouped } from "./format.js";

const MAX_LINES = 5;

/** Shows the last exchange in a line beside the text, and the last few and their sums in a card. */
export class Wire {
  constructor(card, line) {
    this.sent = line;
    this.ownBar = bar();
    this.otherBar = bar();
    this.own = element("span", {});
    this.other = element("span", {});
    this.size = element("p", { class: "quiet size" });
    this.log = element("ol", { class: "log" });
    card.append(
      element("h2", {}, "Read by the model so far"),
      element(
        "dl",
        { class: "sums" },
        element("dt", {}, "Characters, with the state"),
        element("dd", {}, this.own, this.ownBar),
        element("dt", {}, "Without it: all of the text, each time"),
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
    this.largest = 0;
    this.sent.textContent = "Type, and see what is read for each letter.";
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
    this.largest = Math.max(this.largest, received.length);
    this.sent.replaceChildren(...sentence(read, whole, sent));
    this.size.textContent = inBytes(this.largest, byteLength(history + chunk));
    this.#log(chunk ? line(chunk, sent, received) : kept());
    this.#drawSums();
  }

  /** Add the exchange that finishes a text, for which its state alone is sent. */
  end(sent) {
    this.#log(
      element(
        "li",
        {},
        element("span", {}, `end of the text → state ${bytes(sent.length)}`),
        element("span", { class: "back" }, "← result"),
      ),
    );
  }

  #log(item) {
    this.log.prepend(item);
    while (this.log.children.length > MAX_LINES) this.log.lastChild.remove();
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

/** What was read of a text of `whole` characters, and the state that stood for the others. */
function sentence(read, whole, state) {
  const strong = (text) => element("strong", {}, text);
  if (!read) return ["Read: ", strong("nothing"), ". The browser had kept the state of this point."];
  if (!state) return ["Read: ", strong(characters(read)), ", from the beginning: no state of them was kept."];
  return [
    "Read: ",
    strong(`${characters(read)} of ${grouped(whole)}`),
    `. ${bytes(state.length)} of state stood for the others.`,
  ];
}

/** Bytes compared with bytes: those of the largest state that was sent, and those of the text. */
function inBytes(state, text) {
  const size = `The state took at most ${bytes(state)} so far, the text ${bytes(text)}`;
  return state < text
    ? `${size}, which would be sent and read again each time.`
    : `${size}: for a longer text, the state is the smaller one.`;
}

function characterCount(text) {
  return Array.from(text).length;
}

function bar() {
  return element("span", { class: "bar" });
}

function line(chunk, sent, received) {
  const shown = chunk.length > 24 ? `${chunk.slice(0, 23)}…` : chunk;
  return element(
    "li",
    {},
    element("code", {}, shown.replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce")),
    element("span", {}, `→ ${bytes(byteLength(chunk))}${sent ? ` + state ${bytes(sent.length)}` : ""}`),
    element("span", { class: "back" }, `← state ${bytes(received.length)}`),
  );
}

function kept() {
  return element("li", {}, "no text sent: the state was kept here");
}
