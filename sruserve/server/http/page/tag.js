// Tag: the spans that a tagger finds, coloured by label.

import { byId, element } from "./dom.js";
import { Typing } from "./typing.js";

const COLOURS = 6;

/** Start the panel. models: those that tag texts and can stream. */
export function startTag(api, models) {
  const output = byId("tag-output");
  let shown = { model: null, text: "", spans: [] };

  async function ask(model, input, before, more) {
    const body = { model, input, state: before.state, more };
    const { results } = await api.post("/v1/tag", body);
    const { spans, tokens, state } = results[0];
    return {
      state,
      spans: joined(before.spans, spans, before.length),
      // the end of the text whose labels are final; a CRF decides some later
      decided: tokens.length ? before.length + tokens.at(-1).end : before.decided,
      length: before.length + Array.from(input).length,
    };
  }

  const labels = [];
  function colour(label) {
    if (!labels.includes(label)) labels.push(label);
    return labels.indexOf(label) % COLOURS;
  }

  // Spans that were seen already, where the text is the same and the labels are still open.
  function expected(model, { text, decided }) {
    if (model !== shown.model) return [];
    const same = (end) => {
      const beginning = Array.from(shown.text).slice(0, end).join("");
      return text.startsWith(beginning);
    };
    return shown.spans.filter(({ start, end }) => start >= decided && same(end));
  }

  function draw(model, text, spans) {
    shown = { model, text, spans };
    const characters = Array.from(text);
    const parts = [];
    let end = 0;
    for (const span of spans) {
      if (span.start < end) continue;
      parts.push(characters.slice(end, span.start).join(""));
      const inside = characters.slice(span.start, span.end).join("");
      const name = element("small", {}, span.label);
      parts.push(element("mark", { class: `span-${colour(span.label)}` }, inside, "\u00a0", name));
      end = span.end;
    }
    output.replaceChildren(...parts, characters.slice(end).join(""));
  }

  new Typing("tag", models, {
    first: { spans: [], decided: 0, length: 0 },
    read: (model, chunk, before) => ask(model, chunk, before, true),
    show: (entry, model) => {
      draw(model, entry.text, entry.final ?? [...entry.spans, ...expected(model, entry)]);
    },
    end: async (model, chunk, before) => (await ask(model, chunk, before, false)).spans,
  });
}

/** Spans of a text and of the next chunk, which begins at `offset` in characters. */
function joined(spans, next, offset) {
  const all = [...spans];
  for (const span of next) {
    const moved = { ...span, start: span.start + offset, end: span.end + offset };
    if (span.continued && all.length) all.push({ ...all.pop(), end: moved.end });
    else all.push(moved);
  }
  return all;
}
