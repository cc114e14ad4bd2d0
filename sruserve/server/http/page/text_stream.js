// One generated text that can stop, go on, go back to any character, and fork.

import { isAway } from "./api.js";
import { characterStart } from "./format.js";
import { keptStates } from "./prefixes.js";
import { isRefusedState, problemOf } from "./refused.js";

const MAX_CHECKPOINTS = 256;
const PATH = "/v1/completions";

/**
 * A text and the states after some of its beginnings.
 *
 * options: `{model, temperature, top_p}` of all its requests.
 * text: the text at first.
 * checkpoints: `{at, state, seed}` in order of `at`, a position in the text. A request that
 * continues from one sends the text after it. seed: null if the state has a seed already.
 * interval: characters between the states of a stream.
 * origin: where its first state is from, for problems.
 */
export class TextStream extends EventTarget {
  #abort = null;

  constructor(api, options, text, checkpoints, interval, origin = "This text's state") {
    super();
    this.api = api;
    this.options = options;
    this.text = text;
    this.checkpoints = checkpoints;
    this.interval = interval;
    this.origin = origin;
    this.problem = "";
    this.isRefused = false;
  }

  /** Whether it is being written. */
  get running() {
    return this.#abort !== null;
  }

  /** The first position that it can go back to. */
  get earliest() {
    return this.checkpoints[0].at;
  }

  /** The last checkpoint that is not after a position. */
  nearest(position) {
    return this.checkpoints.findLast(({ at }) => at <= position);
  }

  /** Write more tokens. */
  async run(tokens) {
    this.#abort = new AbortController();
    this.problem = "";
    this.isRefused = false;
    this.#changed();
    try {
      await this.#write(tokens, this.#abort.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.#note(error);
    }
    this.#abort = null;
    this.#changed();
  }

  /** Show a problem; of a refused state, the text on the page is still there to start from. */
  fail(error) {
    this.#note(error);
    this.#changed();
  }

  /** Forget all states: the next run reads the text from its beginning. */
  startAgain(seed) {
    this.checkpoints = [{ at: 0, state: null, seed }];
    this.origin = "This text's state";
  }

  /** Stop writing. */
  stop() {
    this.#abort?.abort();
  }

  /** Go back to a position, from which it continues as it did before. */
  rewind(position) {
    this.stop();
    this.text = this.text.slice(0, characterStart(this.text, position));
    this.checkpoints = this.checkpoints.filter(({ at }) => at <= this.text.length);
    this.#changed();
  }

  /** The checkpoint at a position: a kept one, or the nearest one and the text after it. */
  async checkpointAt(position) {
    const near = this.nearest(position);
    if (near.at === position && near.state !== null) return near;
    const prompt = this.text.slice(near.at, position);
    if (!prompt) return near;
    const body = { ...this.#body(near, prompt), max_tokens: 0, return_state: true };
    const { choices } = await this.api.post(PATH, body);
    return { at: position, state: choices[0].state, seed: null };
  }

  /** A stream that begins at a position of this one, with another seed. */
  async fork(position, seed) {
    const at = characterStart(this.text, position);
    const checkpoint = { ...(await this.checkpointAt(at)), seed };
    const earlier = this.checkpoints.filter((each) => each.at < checkpoint.at);
    const text = this.text.slice(0, at);
    return new TextStream(this.api, this.options, text, [...earlier, checkpoint], this.interval);
  }

  async #write(tokens, signal) {
    const begin = this.text.length;
    let seen = "";
    for (let left = tokens; left > 0;) {
      try {
        let unsaved = 0;
        for await (const choice of this.#choices(left, signal)) {
          this.text += choice.text;
          unsaved += choice.token_ids.length;
          if (choice.state) {
            this.#keep({ at: this.text.length, state: choice.state, seed: null });
            left -= unsaved;
            unsaved = 0;
          }
          this.#changed();
          if (choice.finish_reason && choice.stop_reason !== "draining") return;
        }
      } catch (error) {
        if (isRefusedState(error) && seen.startsWith(this.text)) this.text = seen;
        if (!isAway(error)) throw error;
        // what came after the last state comes again, unless the server refuses that state
        seen = this.text;
        this.text = this.text.slice(0, Math.max(begin, this.checkpoints.at(-1).at));
        this.#changed();
        await this.api.untilReady(signal);
      }
    }
  }

  async *#choices(tokens, signal) {
    const near = this.nearest(this.text.length);
    const body = {
      ...this.#body(near, this.text.slice(near.at)),
      max_tokens: tokens,
      stream: true,
      return_state: true,
      return_token_ids: true,
      stream_options: { state_interval: this.interval },
    };
    for await (const { choices } of this.api.stream(PATH, body, signal)) yield* choices;
  }

  #body({ state, seed }, prompt) {
    return {
      ...this.options,
      prompt,
      ...(state !== null && { state }),
      ...(seed !== null && { seed }),
    };
  }

  #note(error) {
    this.problem = problemOf(error, this.origin);
    this.isRefused = isRefusedState(error);
  }

  #keep(checkpoint) {
    this.checkpoints.push(checkpoint);
    if (this.checkpoints.length > keptStates(checkpoint.state, MAX_CHECKPOINTS)) {
      const last = this.checkpoints.length - 1;
      this.checkpoints = this.checkpoints.filter((_, index) => index % 2 === 0 || index === last);
    }
    this.dispatchEvent(new CustomEvent("state", { detail: checkpoint }));
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
