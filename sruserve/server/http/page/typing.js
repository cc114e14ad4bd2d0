// A text field whose text is read while it is being typed.

import { byId, element, prefersStillness, say } from "./dom.js";
import { Prefixes } from "./prefixes.js";
import { isRefusedState } from "./refused.js";
import { Wire } from "./wire.js";

const KEYSTROKE_MS = 55;
const PAUSE_MS = 160; // after which the unfinished word counts as finished

/**
 * Connects the field, what is said below it, and the error of a panel.
 *
 * panel: the id of the panel, with which the ids of its parts begin.
 * models: those of the panel's task.
 * read: sends a chunk after an entry to a model, and returns the entry after it.
 * first: the entry before any text.
 * show: draws an entry.
 * about: says what the panel shows of a model; without it, the model's description does.
 * end: finishes a text whose state holds back an unfinished word; sends a chunk after an entry as
 *   the last one, and returns what becomes the `final` of the entry of the whole text.
 */
export class Typing {
  #showing = null;
  #pause = null;

  constructor(panel, models, { read, first, show, about, end }) {
    this.field = byId(`${panel}-text`);
    this.problem = byId(`${panel}-problem`);
    this.wire = new Wire(byId(`${panel}-sent`), byId(`${panel}-sums`));
    this.picker = modelPicker(byId(`${panel}-model`), models, about);
    this.read = read;
    this.first = first;
    this.show = show;
    this.end = end;
    this.#begin();
    this.picker.addEventListener("change", () => {
      this.#stopTyping();
      this.#begin();
      this.#showExamples();
      this.follow();
    });
    this.field.addEventListener("input", () => {
      this.#stopTyping();
      this.follow();
    });
    this.examples = [...byId(`${panel}-examples`).querySelectorAll("button")];
    for (const button of this.examples) {
      button.addEventListener("click", ({ detail }) => {
        if (detail) this.field.focus({ preventScroll: true }); // of a pointer: who types, goes on
        this.type(button.textContent);
      });
    }
    this.models = models;
    this.#showExamples();
  }

  /** The id of the chosen model. */
  get model() {
    return this.picker.value;
  }

  /** Read the field's text. */
  async follow() {
    const { field, prefixes } = this;
    if (field.selectionEnd === field.value.length) field.scrollTop = field.scrollHeight;
    let problem = "";
    this.wire.count(field.value);
    try {
      await prefixes.follow(field.value);
    } catch (error) {
      problem = error.message;
    }
    if (this.prefixes === prefixes) say(this.problem, problem);
  }

  /** Type a text into the empty field, one character after another. */
  type(text) {
    this.#stopTyping();
    const characters = prefersStillness() ? [text] : Array.from(text);
    this.field.value = "";
    this.#begin();
    const next = () => {
      this.field.value += characters.shift();
      this.field.scrollTop = this.field.scrollHeight;
      this.follow();
      this.#showing = characters.length ? setTimeout(next, KEYSTROKE_MS) : null;
    };
    next();
  }

  #begin() {
    const model = this.model;
    const prefixes = new Prefixes(
      (chunk, before) => this.read(model, chunk, before),
      this.first,
      (entry, chunk, before) => {
        if (this.prefixes !== prefixes) return; // another model or example was chosen meanwhile
        if (!entry.text) this.wire.reset();
        else this.wire.add(chunk, before.text, chunk && before.state, entry.state);
        this.show(entry, model);
        clearTimeout(this.#pause);
        if (this.end && entry.text.trim() && !entry.final) {
          this.#pause = setTimeout(() => this.#finish(entry, model), PAUSE_MS);
        }
      },
    );
    this.prefixes = prefixes;
    this.wire.reset();
  }

  async #finish(entry, model) {
    const isCurrent = () => this.field.value === entry.text && this.model === model;
    if (!isCurrent()) return;
    try {
      entry.final = await this.end(model, "", entry).catch((error) => {
        if (!isRefusedState(error)) throw error;
        return this.end(model, entry.text, { ...this.first, state: null });
      });
      if (!isCurrent()) return;
      this.show(entry, model);
    } catch (error) {
      say(this.problem, error.message);
    }
  }

  /** Show the examples for the labels of the chosen model, or all if there are none. */
  #showExamples() {
    const { labels } = this.models.find(({ id }) => id === this.model);
    const fits = ({ dataset: { label } }) => label === undefined || labels?.includes(label);
    const fit = this.examples.some(({ dataset }) => labels?.includes(dataset.label));
    for (const button of this.examples) button.hidden = fit && !fits(button);
  }

  #stopTyping() {
    clearTimeout(this.#showing);
    this.#showing = null;
  }
}

/** Fill the list of models, and say below it what the chosen one does; one alone needs no choice. */
export function modelPicker(picker, models, what = ({ description }) => description) {
  picker.append(...models.map(({ id }) => element("option", { value: id }, id)));
  const choice = picker.closest("label");
  choice.hidden = models.length < 2;
  const about = element("p", { class: "quiet about" });
  const describe = () => say(about, what(models.find(({ id }) => id === picker.value)));
  picker.addEventListener("change", describe);
  choice.after(about);
  describe();
  return picker;
}
