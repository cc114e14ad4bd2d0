// Follow a text that is being typed: send only what is new, with the state of what came before.

import { isRefusedState } from "./refused.js";

const MAX_KEPT = 200;
const MAX_CHARACTERS = 16e6; // of states: they are small for most models, and a megabyte for a few
const FEWEST = 4;

/** The number of states like `state` to keep, at most `most`. */
export function keptStates(state, most) {
  return Math.max(FEWEST, Math.min(most, Math.floor(MAX_CHARACTERS / state.length)));
}

/**
 * A text, and the states after some of its beginnings.
 *
 * read: sends a chunk that follows an entry, and returns the entry after it: `{state, …}`.
 * first: the entry before any text.
 * onRead: is called with the entry, the chunk and the entry before it.
 *
 * If the server cannot open a state, all of the text is read anew.
 */
export class Prefixes {
  #kept;
  #wanted = "";
  #running = null;

  constructor(read, first, onRead) {
    this.read = read;
    this.onRead = onRead;
    this.#kept = [{ ...first, text: "", state: null }];
  }

  /** Read up to a text; of texts that follow each other quickly, some are skipped. */
  follow(text) {
    this.#wanted = text;
    this.#running ??= this.#run().finally(() => {
      this.#running = null;
    });
    return this.#running;
  }

  async #run() {
    for (let reached = null; reached !== this.#wanted;) {
      const text = this.#wanted;
      this.#kept = this.#kept.filter((entry) => text.startsWith(entry.text));
      const before = this.#kept.at(-1);
      const chunk = text.slice(before.text.length);
      let entry = before;
      try {
        if (chunk) entry = { ...(await this.read(chunk, before)), text };
      } catch (error) {
        if (before.state === null || !isRefusedState(error)) throw error;
        this.#kept = this.#kept.slice(0, 1); // the others are of the same key
        continue;
      }
      if (chunk) this.#keep(entry);
      reached = text;
      this.onRead(entry, chunk, before);
    }
  }

  #keep(entry) {
    this.#kept.push(entry);
    if (this.#kept.length > keptStates(entry.state, MAX_KEPT)) {
      // every second one of the older half, so that an edit anywhere has a state near it
      const half = this.#kept.length >> 1;
      this.#kept = this.#kept.filter((_, index) => index === 0 || index >= half || index % 2 === 0);
    }
  }
}
