// The tour: what is special here, in a few steps that each wait for a click.

import { byId, element, prefersStillness, say } from "./dom.js";
import { bytes, characters, duration, grouped, percent } from "./format.js";

const LENGTH = 160_000; // of the long text, in characters
const PRINTED_PAGE = 1800; // characters
const SHOWN = 90; // characters of the end of the long text
const KEYSTROKE_MS = 350;
const BEGINNING = "JULIET:\nGood night, good night! And when the morning comes, ";
const ENDINGS = [3, 6, 2]; // seeds of the sampler
const ENDING = { temperature: 0.5, max_tokens: 140 };
const SENT =
  "Each letter is sent with the memory, and a new memory comes back; the long text stays here.";

/** Shows what a memory is good for. classifiers, generators: models that can stream. */
export class Tour {
  #act = null; // what the first button does
  #abort = new AbortController();

  constructor(api, classifiers, generators) {
    Object.assign(this, { api, classifiers, generators });
    this.steps = [
      ...(classifiers.length ? [this.#readOnce, this.#typeOn, this.#check] : []),
      ...(generators.length ? [this.#goOn] : []),
    ];
    this.text = byId("tour-text");
    this.next = byId("tour-next");
    const start = byId("tour-start");
    start.hidden = !this.steps.length;
    start.disabled = false;
    start.addEventListener("click", () => {
      this.#show(0);
      this.next.focus({ preventScroll: true });
      start.hidden = true;
    });
    this.next.addEventListener("click", () => {
      if (this.next.ariaDisabled !== "true") this.#act();
    });
    byId("tour-close").addEventListener("click", () => this.#close(byId("tour-start")));
  }

  #close(then) {
    this.#abort.abort();
    byId("tour").hidden = true;
    byId("tour-start").hidden = false;
    then.focus();
  }

  #tryIt() {
    const panel = this.generators.length ? "generate" : "classify";
    byId(`tab-${panel}`).click();
    const field = byId(panel).querySelector("textarea");
    this.#close(field);
    field.select(); // so that what is typed takes the place of the example
  }

  /** Let the first button say and do something; without `act`, it waits. */
  #offer(label, act) {
    this.next.textContent = label;
    this.next.ariaDisabled = String(!act);
    this.#act = act;
  }

  async #show(step) {
    const { steps } = this;
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    byId("tour-place").textContent = `Step ${step + 1} of ${steps.length}`;
    this.#offer("Next");
    this.#say("Reading…");
    byId("tour").hidden = false;
    say(byId("tour-problem"), "");
    try {
      await steps[step].call(this, signal);
      if (step + 1 < steps.length) this.#offer("Next", () => this.#show(step + 1));
      else this.#offer("Try it yourself", () => this.#tryIt());
    } catch (error) {
      if (signal.aborted) return;
      this.#say("");
      say(byId("tour-problem"), error.message);
      this.#offer("Try again", () => this.#show(step));
    }
    const behavior = prefersStillness() ? "auto" : "smooth";
    byId("tour").scrollIntoView({ behavior, block: "nearest" });
  }

  async #readOnce(signal) {
    this.#draw("");
    this.#compare();
    const examples = [...byId("classify-examples").querySelectorAll("button:not([hidden])")];
    const sentences = examples.map(({ textContent }) => textContent);
    const round = `${sentences.join(" ")} `;
    const last = sentences.reduce((one, other) => (other.length < one.length ? other : one));
    const word = last.lastIndexOf(" ") + 1;
    this.long = round.repeat(Math.ceil(LENGTH / round.length)) + last.slice(0, word);
    this.typed = last.slice(word);
    const model = byId("classify-model").value;
    this.model = this.classifiers.find(({ id }) => id === model);
    this.memory = (await this.#classify(this.long, null, true, signal)).state;
    const { length } = this.long;
    const size = this.memory.length;
    this.#say(
      "A long text was read, once.",
      `It would fill ${Math.round(length / PRINTED_PAGE)} printed pages ` +
        "(a few sentences, over and over, the last one unfinished). " +
        `All that the model keeps of it is a memory of ${bytes(size)}. ` +
        "The server gave it to this page, encrypted, and kept nothing. " +
        "Any copy of the server can go on from it.",
    );
    this.#draw(this.long);
    this.#compare(["The memory", bytes(size), size / length], ["The text", bytes(length), 1]);
  }

  async #typeOn(signal) {
    const { long, typed, model } = this;
    this.#say("Now somebody types on.", SENT);
    const skipped = new Promise((skip) => {
      this.#offer("Skip", skip);
      if (prefersStillness()) skip();
    });
    let state = this.memory;
    for (let count = 1; count <= typed.length; count += 1) {
      await Promise.race([skipped, new Promise((done) => setTimeout(done, KEYSTROKE_MS))]);
      ({ state } = await this.#classify(typed[count - 1], state, true, signal));
      const all = long.length + count;
      this.#draw(long, typed.slice(0, count));
      this.#compare(
        ["Characters read, with the memory", grouped(count), count / all],
        ["Without it, everything again", grouped(all), 1],
      );
    }
    this.answer = await this.#classify("", state, false, signal);
    const { label, score } = this.answer;
    // beside a question, this label looks like a wrong answer
    const isDemo = model.id.startsWith("question-type") && label === "human";
    this.#say(
      "Somebody typed on.",
      `${SENT} Read: ${characters(typed.length)}. ` +
        (isDemo
          ? "The answer: this asks for a person (label “human”)"
          : `(${model.description ?? model.id}) The answer: “${label}”`) +
        `, ${percent(score)} sure. Would it be the same after reading everything again?`,
    );
  }

  async #check(signal) {
    const { long, typed } = this;
    const text = long + typed;
    const timed = async (input, state) => {
      const start = performance.now();
      const reply = await this.#classify(input, state, false, signal);
      return { ...reply, seconds: (performance.now() - start) / 1000 };
    };
    const kept = await timed(typed, this.memory);
    const again = await timed(text, null);
    const alone = await this.#classify(typed, null, false, signal);
    const expected = JSON.stringify(this.answer.scores);
    const isSame = [kept, again].every(({ scores }) => JSON.stringify(scores) === expected);
    this.#say(
      isSame ? "The same answer, to the last digit." : "Not the same answer.",
      (isSame
        ? "The memory is not a copy of the text. It is all that the model makes of a text, " +
          "so going on from it is the same as reading everything again. "
        : "") +
        `With only “${typed}” and no memory, the ` +
        (alone.label === again.label ? "model knows nothing of the rest." : "answer is wrong."),
    );
    const row = (name, { length }, { label, score, seconds }) => [
      `${name}: ${characters(length)} read${seconds ? `, in ${duration(seconds)}` : ""}`,
      `“${label}”, ${100 * score} % sure`,
    ];
    this.#compare(
      row("With the memory", typed, kept),
      row("Without it, everything again", text, again),
      row("Without it, only what is new", typed, alone),
    );
  }

  async #goOn(signal) {
    const write = async (options) => {
      const body = { model: this.generators[0].id, ...options };
      return (await this.api.post("/v1/completions", body, signal)).choices[0];
    };
    const { state } = await write({ prompt: BEGINNING, max_tokens: 0, return_state: true });
    const texts = await Promise.all(
      ENDINGS.map((seed) => write({ prompt: "", state, seed, ...ENDING })),
    );
    const isDemo = this.generators[0].id.startsWith("shakespeare");
    this.#say(
      "A memory can be copied.",
      `${this.model ? "Another" : "A"} model, which writes${isDemo ? " like Shakespeare" : ""}, ` +
        "read the shaded lines once. " +
        `From three copies of its memory (${bytes(state.length)} each) it wrote three endings.` +
        (isDemo ? " (A small demonstration: do not expect sense.)" : ""),
    );
    this.#draw(BEGINNING);
    this.text.append(...texts.map(({ text }) => element("span", { class: "ending" }, words(text))));
    this.#compare();
  }

  async #classify(input, state, more, signal) {
    const body = { model: this.model.id, input, state, more };
    return (await this.api.post("/v1/classify", body, signal)).results[0];
  }

  #say(head, text = "") {
    byId("tour-caption").replaceChildren(element("strong", {}, head), ` ${text}`);
  }

  /** Draw the end of a text that a memory stands for, and what is new after it. */
  #draw(old, fresh = "") {
    const end = old.length > SHOWN ? `… ${old.slice(-SHOWN).replace(/^\S*\s/, "")}` : old;
    this.text.replaceChildren(element("span", { class: "shared" }, end), fresh);
  }

  /** Draw rows: `[name, amount, share]`; those with a share have a bar. */
  #compare(...rows) {
    const parts = rows.flatMap(([name, amount, share]) => {
      const bar = share && element("span", { class: "bar" });
      bar?.style.setProperty("--share", share);
      return [element("dt", {}, name), element("dd", {}, amount, bar ?? "")];
    });
    byId("tour-sums").replaceChildren(...parts);
  }
}

/** The first sentence of a text, or its whole words. */
function words(text) {
  return /^[^]*?[.!?](?=\s|$)/.exec(text)?.[0] ?? text.slice(0, text.lastIndexOf(" "));
}
