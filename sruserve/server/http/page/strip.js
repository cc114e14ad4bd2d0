// The state as a picture: a band for each layer, a column for each moment.

import { keptStates } from "./prefixes.js";

const MAX_COLUMNS = 160;
const MAX_WAITING = 64;
const VALUES = 12; // of each layer
const CONTRAST = 0.7; // an exponent; lower shows small values stronger
const FEWEST_COLUMNS = 24; // that a strip has room for
const BAND_GAP = 1 / 7; // of a band's height

/** Draws the states of a text on a canvas as they come. */
export class Strip {
  #columns = [];
  #waiting = [];
  #looking = false;
  #marked = null; // a position

  /**
   * caption: the element that says in words what the picture shows.
   * onProblem: is called with the error if a state cannot be read.
   */
  constructor(api, canvas, caption, onProblem) {
    this.api = api;
    this.canvas = canvas;
    this.caption = caption;
    this.onProblem = onProblem;
    this.redraw = () => this.#draw();
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.theme.addEventListener("change", this.redraw);
    this.observer = new ResizeObserver(this.redraw);
    this.observer.observe(canvas);
  }

  /** Show the state after `at` characters. */
  add({ at, state }) {
    this.#waiting.push({ at, state });
    if (this.#waiting.length > keptStates(state, MAX_WAITING)) this.#waiting.shift();
    if (!this.#looking) this.#look();
  }

  /** Take away the states after a position. */
  trim(position) {
    const isLeft = ({ at }) => at <= position;
    if (this.#columns.every(isLeft) && this.#waiting.every(isLeft)) return;
    this.#columns = this.#columns.filter(isLeft);
    this.#waiting = this.#waiting.filter(isLeft);
    this.#draw();
  }

  /** Begin anew. */
  clear() {
    this.trim(-1);
  }

  /** Mark a position in the text, or none. */
  mark(position) {
    if (position === this.#marked) return;
    this.#marked = position;
    this.#draw();
  }

  /** The columns so far, for a fork that shares the beginning. */
  begin(other, position) {
    this.#columns = other.#columns.filter(({ at }) => at <= position);
    if (this.#columns.length) {
      this.canvas.style.setProperty("--bands", this.#columns[0].entries.length);
    }
    this.#draw();
  }

  /** Show nothing more. */
  close() {
    this.#waiting = [];
    this.observer.disconnect();
    this.theme.removeEventListener("change", this.redraw);
  }

  async #look() {
    this.#looking = true;
    while (this.#waiting.length) {
      const next = this.#waiting[0];
      try {
        const view = await this.api.post("/v1/state", { state: next.state, values: VALUES });
        if (this.#waiting[0] !== next) continue; // it was trimmed meanwhile
        this.#waiting.shift();
        this.#put(next.at, view);
      } catch (error) {
        if (this.#waiting[0] !== next) continue;
        this.#waiting = [];
        this.onProblem(error);
      }
    }
    this.#looking = false;
  }

  #put(at, view) {
    this.#columns.push({ at, entries: view.entries });
    if (this.#columns.length > MAX_COLUMNS) {
      this.#columns = this.#columns.filter((_, index) => index % 2 === 1);
    }
    const { size } = view.entries[0];
    this.canvas.style.setProperty("--bands", view.entries.length);
    this.caption.textContent =
      "The memory as a picture, a column for each moment: " +
      `${view.entries.length * size} numbers, however long the text.`;
    this.#draw();
  }

  #draw() {
    const ratio = devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(this.canvas.clientHeight * ratio);
    if (!width || !height) return;
    Object.assign(this.canvas, { width, height });
    const paint = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const colours = [style.getPropertyValue("--accent"), style.getPropertyValue("--low")];
    const bands = this.#columns[0]?.entries.length ?? 0;
    const across = width / Math.max(this.#columns.length, FEWEST_COLUMNS);
    for (let band = 0; band < bands; band += 1) {
      this.#drawBand(paint, colours, band, {
        across,
        height: height / bands,
        top: (band * height) / bands,
      });
    }
    if (this.#marked !== null) {
      const left = across * this.#columns.filter(({ at }) => at <= this.#marked).length;
      paint.globalAlpha = 1;
      paint.fillStyle = style.color;
      paint.fillRect(left - ratio, 0, 2 * ratio, height);
    }
  }

  #drawBand(paint, [high, low], band, { across, height, top }) {
    const columns = this.#columns.map(({ entries }) => entries[band]);
    const most = Math.max(...columns.map(({ min, max }) => Math.max(-min, max)), 1e-9);
    const down = (height * (1 - BAND_GAP)) / columns[0].values.length;
    columns.forEach(({ values }, column) => {
      values.forEach((value, row) => {
        paint.globalAlpha = (Math.abs(value) / most) ** CONTRAST;
        paint.fillStyle = value > 0 ? high : low;
        const left = Math.floor(column * across);
        const upper = Math.floor(top + row * down);
        const right = Math.floor((column + 1) * across);
        paint.fillRect(left, upper, right - left, Math.floor(top + (row + 1) * down) - upper);
      });
    });
  }
}
