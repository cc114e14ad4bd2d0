// One stream on the page: its text, its state, and what can be done with it.

import { element, prefersStillness, say } from "./dom.js";
import { bytes } from "./format.js";
import { isOnlyHere, linkTo } from "./link.js";
import { isRefusedState } from "./refused.js";
import { Strip } from "./strip.js";

/**
 * Shows a `TextStream`.
 *
 * name: such as `Text 1`. fork: `{name, position}` of the stream that it is a fork of, or null.
 * seed: of its sampler, or null if only its state has it.
 * actions: `more()`: how many tokens to write; `fork(lane, position)`; `remove(lane)`.
 */
export class Lane {
  #position = null; // chosen, to go back to
  #frame = null; // that will draw it

  constructor(api, stream, name, fork, seed, actions) {
    this.stream = stream;
    this.name = name;
    this.seed = seed;
    this.actions = actions;
    this.fork = fork;
    this.#build();
    this.strip = new Strip(api, this.canvas, this.caption, (error) => stream.fail(error));
    stream.addEventListener("change", () => this.#drawSoon());
    stream.addEventListener("state", ({ detail }) => this.strip.add(detail));
    this.#draw();
  }

  /** The position that is chosen, or the end. */
  get position() {
    return this.#position ?? this.stream.text.length;
  }

  /** Write on, from the chosen position. */
  run() {
    if (this.#position !== null) {
      this.stream.rewind(this.#position);
      this.choose(null);
    }
    if (this.stream.isRefused) {
      this.stream.startAgain(this.seed);
      this.strip.clear();
    }
    this.strip.trim(this.stream.text.length);
    return this.stream.run(this.actions.more());
  }

  #build() {
    const button = (label, click) => element("button", { click }, label);
    this.status = element("span", { class: "status", role: "status" });
    this.shared = element("span", { class: "shared" });
    this.kept = element("span");
    this.ahead = element("span", { class: "ahead" });
    const parts = [this.shared, this.kept, this.ahead];
    this.text = element("p", { class: "text", click: () => this.#chooseClicked() }, ...parts);
    this.canvas = element("canvas", { class: "strip", "aria-hidden": "true" });
    this.caption = element("p", { class: "quiet caption" }, "The memory is drawn as text comes.");
    const input = () => this.choose(Number(this.slider.value));
    this.slider = element("input", { type: "range", input, class: "rewind" });
    this.where = element("output");
    const goBack = element("span", {}, "Go back to");
    this.go = button("Stop", () => (this.stream.running ? this.stream.stop() : this.run()));
    this.forkButton = button("Fork", () => this.actions.fork(this, this.position));
    this.linkButton = button("Link", () => this.#link());
    const remove = button("Remove", () => this.actions.remove(this));
    this.link = element("input", {
      readonly: true,
      hidden: true,
      "aria-label": "Link to this point",
    });
    this.copied = element("p", { class: "quiet copied", role: "status", hidden: true });
    this.problem = element("p", { class: "problem", role: "alert", hidden: true });
    const { fork } = this;
    const origin = fork ? `goes on from ${fork.name}, character ${fork.position}` : "";
    const seed = this.seed === null ? "seed in its memory" : `seed ${this.seed}`;
    this.element = element(
      "article",
      { class: "lane card", "aria-label": this.name },
      element(
        "header",
        {},
        element("h2", {}, this.name, " ", element("span", { class: "quiet" }, origin)),
        remove,
        element("span", { class: "quiet" }, seed),
        this.status,
      ),
      this.text,
      element("label", { class: "back-to" }, goBack, this.slider, this.where),
      element("div", { class: "buttons" }, this.go, this.forkButton, this.linkButton),
      this.link,
      this.copied,
      this.problem,
      this.canvas,
      this.caption,
    );
  }

  /** Draw the text in the next frame, however much of it comes; begin and end at once. */
  #drawSoon() {
    if (this.stream.running !== this.element.classList.contains("running")) this.#draw();
    else this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    cancelAnimationFrame(this.#frame); // a late one would take away the link and the problem
    this.#frame = null;
    const { text, running, earliest, isRefused } = this.stream;
    const wasRunning = this.element.classList.contains("running");
    if (this.#position !== null && (running || this.#position >= text.length))
      this.#position = null;
    const shared = Math.min(this.fork?.position ?? 0, this.position);
    this.shared.textContent = text.slice(0, shared);
    this.kept.textContent = text.slice(shared, this.position);
    this.ahead.textContent = text.slice(this.position);
    const isFixed = earliest === text.length; // a slider without a range shows its end on the left
    const min = isFixed ? 0 : earliest;
    Object.assign(this.slider, { min, max: text.length, value: this.position });
    this.slider.disabled = running || isFixed;
    this.where.textContent = `character ${this.position} of ${text.length}`;
    this.go.textContent = running
      ? "Stop"
      : isRefused
        ? "Start again from this text"
        : this.#position === null
          ? "Continue"
          : "Continue here";
    this.forkButton.textContent = this.#position === null ? "Fork" : "Fork here";
    const last = this.stream.checkpoints.at(-1).state;
    this.status.textContent = running ? "writing" : last ? `memory ${bytes(last.length)}` : "";
    this.element.classList.toggle("running", running);
    if (running || wasRunning) this.showEnd();
    this.link.hidden = true;
    say(this.copied, "");
    this.strip.mark(this.#position);
    say(this.problem, this.stream.problem);
  }

  /** Show a problem of something that was tried with the stream. */
  fail(error) {
    if (isRefusedState(error)) this.stream.fail(error);
    else say(this.problem, error.message);
  }

  /** Bring it into view. */
  reveal() {
    const behavior = prefersStillness() ? "auto" : "smooth";
    this.element.scrollIntoView({ behavior, block: "nearest" });
  }

  /** Show the end of the text. */
  showEnd() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  /** Choose a position to go back to, or none. */
  choose(position) {
    this.#position = position;
    this.#draw();
    if (this.#position !== null) this.#showStart(this.ahead);
  }

  /** Show where the text leaves that of which it is a fork. */
  showFork() {
    this.#showStart(this.kept);
  }

  #showStart(part) {
    const { top } = part.getClientRects()[0] ?? part.getBoundingClientRect();
    const above = top - this.text.getBoundingClientRect().top;
    this.text.scrollTop += above - this.text.clientHeight / 2;
  }

  /** Choose the character that was clicked. */
  #chooseClicked() {
    const { focusNode, focusOffset, isCollapsed } = getSelection();
    if (this.stream.running || !isCollapsed || !this.text.contains(focusNode)) return;
    const before = new Range();
    before.setStart(this.text, 0);
    before.setEnd(focusNode, focusOffset);
    this.choose(Math.max(this.stream.earliest, before.toString().length));
  }

  async #link() {
    const chosen = this.#position;
    try {
      const link = await linkTo(this.stream, this.position);
      if (this.#position !== chosen) return; // another point is shown by now
      this.link.value = link;
      this.link.hidden = false;
      this.link.select();
      const isCopied = await copy(link);
      if (this.link.hidden || this.link.value !== link) return;
      const who = isCopied ? "Copied. Whoever opens it" : "Whoever opens this link";
      const where = isOnlyHere() ? " It works only on this computer." : "";
      say(
        this.copied,
        `${who} continues from here (${bytes(link.length)}).${where} The text is in the link so ` +
          "that your friend can see it; the server gets only the memory.",
      );
    } catch (error) {
      this.fail(error);
    }
  }
}

/** Copy a text, if the browser lets the page do so; returns whether it did. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
