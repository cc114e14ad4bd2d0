// What a model read for a text that is being typed, and what it would read without its memory.

import { element } from "./dom.js";
import { byteLength, bytes, characters, grouped } from "./format.js";

/** Says what the last exchange read of a text, and in another place what all of them read. */
export class Wire {
  constructor(last, sums) {
    Object.assign(this, { last, sums });
    this.reset();
  }

  /** Begin anew, with nothing read. */
  reset() {
    Object.assign(this, { read: 0, repeated: 0, largest: 0 });
    this.last.textContent = "Type, and see what is read for each letter.";
    this.sums.textContent = "";
  }

  /** Count a text that the field has, all of which would be read without a memory. */
  count(text) {
    this.repeated += characterCount(text);
  }

  /**
   * Show an exchange.
   *
   * chunk: the new text; empty if the browser still had the state of this text. history: the text
   * before it. sent, received: the state that went with the chunk and the one that came back.
   */
  add(chunk, history, sent, received) {
    const read = characterCount(chunk);
    this.read += read;
    this.largest = Math.max(this.largest, received.length);
    this.last.replaceChildren(...sentence(read, read + characterCount(history), sent));
    this.sums.textContent =
      `So far: ${characters(this.read)}. Without the memory, it would be ` +
      `${grouped(this.repeated)}: all of the text each time it changes. ` +
      inBytes(this.largest, byteLength(history + chunk));
  }
}

/** What was read of a text of `whole` characters, and the memory that stood for the others. */
function sentence(read, whole, state) {
  const strong = (text) => element("strong", {}, text);
  const parts = !read
    ? [strong("nothing"), ". The browser had kept the memory of this point."]
    : !state
      ? [strong(characters(read)), ", from the beginning: no memory of them was kept."]
      : [
          strong(`${characters(read)} of ${grouped(whole)}`),
          `. A memory of ${bytes(state.length)} stood for the others.`,
        ];
  return ["Read: ", ...parts];
}

/** Bytes compared with bytes: those of the largest state that was sent, and those of the text. */
function inBytes(state, text) {
  return state < text
    ? `A memory of at most ${bytes(state)} travels, and not a text of ${bytes(text)}.`
    : "The memory is larger than a text as short as this; " +
        `it pays from about ${bytes(state)} of text on.`;
}

function characterCount(text) {
  return Array.from(text).length;
}
