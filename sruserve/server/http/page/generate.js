// Generate: streams of text, side by side.

import { byId, say } from "./dom.js";
import { Lane } from "./lane.js";
import { LINK, readLink } from "./link.js";
import { TextStream } from "./text_stream.js";
import { modelPicker } from "./typing.js";

const FORKS = 2;
const MAX_LANES = 6; // a browser opens so many connections to a server
const MAX_SEED = 2 ** 32;

/** Start the panel. models: those that generate text and can stream. */
export class Generate {
  #lanes = [];
  #made = 0;

  constructor(api, models) {
    this.api = api;
    this.models = models;
    this.form = byId("generate-form");
    this.list = byId("generate-lanes");
    this.empty = byId("generate-empty");
    this.problem = byId("generate-problem");
    modelPicker(byId("generate-model"), models);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#begin();
    });
    const { parentElement: settings } = this.form.querySelector("summary");
    this.form.addEventListener("invalid", () => (settings.open = true), true);
    addEventListener("hashchange", () => this.openLink());
    this.openLink();
  }

  /** Continue the stream of the link in the address, if there is one. */
  openLink() {
    const link = this.#readLink();
    if (link === null || !this.#hasRoom(1)) return;
    const { options, text, state, seed } = link;
    const checkpoint = { at: text.length, state, seed };
    const interval = this.#interval(options.model);
    const stream = new TextStream(this.api, options, text, [checkpoint], interval, LINK);
    this.#add(stream, seed).strip.add(checkpoint);
  }

  #readLink() {
    try {
      return readLink(location.hash);
    } catch (error) {
      say(this.problem, error.message);
      return null;
    }
  }

  /** Whether there is room for more streams; says so if not. */
  #hasRoom(count) {
    const room = this.#lanes.length + count <= MAX_LANES;
    say(this.problem, room ? "" : `At most ${MAX_LANES} texts fit here: remove some first.`);
    return room;
  }

  #begin() {
    const { elements } = this.form;
    if (!elements.prompt.value) {
      say(this.problem, "Write a beginning first.");
      return;
    }
    if (!this.#hasRoom(1)) return;
    const seed = Number(elements.seed.value || Math.floor(Math.random() * MAX_SEED));
    const options = {
      model: elements.model.value,
      temperature: Number(elements.temperature.value),
      top_p: Number(elements.top_p.value),
    };
    const start = { at: 0, state: null, seed };
    const interval = this.#interval(options.model);
    const stream = new TextStream(this.api, options, elements.prompt.value, [start], interval);
    const lane = this.#add(stream, seed);
    lane.run();
    lane.reveal();
  }

  /** Characters between two states: more of them where a state is large. */
  #interval(model) {
    const size = this.models.find(({ id }) => id === model)?.state_bytes ?? 0;
    return Math.min(512, Math.max(8, Math.round(size / 1000)));
  }

  /** Show a stream at the end, or a fork after `before`. */
  #add(stream, seed, fork = null, before = null) {
    this.#made += 1;
    const lane = new Lane(this.api, stream, `Text ${this.#made}`, fork, seed, {
      more: () => Number(this.form.elements.max_tokens.value),
      fork: (from, position) => this.#fork(from, position),
      remove: (which) => {
        this.#remove(which);
        this.form.querySelector("button").focus();
      },
    });
    this.#lanes.push(lane);
    if (before) before.after(lane.element);
    else this.list.append(lane.element);
    lane.showEnd();
    this.empty.hidden = true;
    return lane;
  }

  async #fork(from, position) {
    if (!this.#hasRoom(FORKS)) return;
    try {
      const first = (from.seed ?? 0) + this.#made;
      const seeds = Array.from({ length: FORKS }, (_, index) => first + index);
      const streams = await Promise.all(seeds.map((seed) => from.stream.fork(position, seed)));
      const fork = { name: from.name, position };
      let before = from.element;
      for (const [index, stream] of streams.entries()) {
        if (!this.#hasRoom(1)) break; // another fork was quicker
        const lane = this.#add(stream, seeds[index], fork, before);
        before = lane.element;
        lane.strip.begin(from.strip, position);
        lane.run().then(() => lane.showFork());
      }
    } catch (error) {
      from.fail(error);
    }
  }

  #remove(lane) {
    lane.stream.stop();
    lane.strip.close();
    lane.element.remove();
    this.#lanes = this.#lanes.filter((each) => each !== lane);
    this.empty.hidden = this.#lanes.length > 0;
  }
}
