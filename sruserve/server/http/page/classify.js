// Classify: label bars that move while one types.

import { byId, element, say } from "./dom.js";
import { percent } from "./format.js";
import { Typing } from "./typing.js";

/** Start the panel. models: those that classify texts and can stream. */
export function startClassify(api, models) {
  const bars = new Bars(byId("classify-labels"));
  const summary = byId("classify-summary");
  const drawLabels = (model) => bars.begin(models.find(({ id }) => id === model).labels);

  async function ask(model, input, state, more) {
    const { results } = await api.post("/v1/classify", { model, input, state, more });
    return results[0];
  }

  function draw(result) {
    bars.draw(result?.scores ?? {}, result?.label);
    say(summary, result?.label ? `${result.label}, ${percent(result.score)}` : "");
  }

  const typing = new Typing("classify", models, {
    first: { result: null },
    read: async (model, chunk, before) => {
      const result = await ask(model, chunk, before.state, true);
      return { state: result.state, result: result.label ? result : before.result };
    },
    show: (entry) => draw(entry.final ?? entry.result),
    end: (model, chunk, before) => ask(model, chunk, before.state, false),
  });

  drawLabels(typing.model);
  typing.picker.addEventListener("change", () => drawLabels(typing.model));
}

/** A bar for each label. */
class Bars {
  #rows = new Map();

  constructor(list) {
    this.list = list;
  }

  /** Draw empty bars for labels. */
  begin(labels) {
    this.#rows = new Map(labels.map((label) => [label, this.#row(label)]));
    this.list.replaceChildren(...[...this.#rows.values()].map(({ row }) => row));
  }

  #row(label) {
    const bar = element("span", { class: "bar" });
    const value = element("span", { class: "value" }, "–");
    const name = element("span", { class: "name" }, label);
    return { row: element("li", {}, name, bar, value), bar, value };
  }

  /** Move the bars. scores: by label. */
  draw(scores, best) {
    for (const [label, { row, bar, value }] of this.#rows) {
      const score = scores[label];
      bar.style.setProperty("--share", score ?? 0);
      value.textContent = score === undefined ? "–" : percent(score);
      row.classList.toggle("best", label === best);
    }
  }
}
