// Score: each character tinted by its surprise.

import { byId, element, say } from "./dom.js";
import { Typing } from "./typing.js";

const LEVELS = 8; // of tint
const BITS_PER_LEVEL = 1.25;
const INVISIBLE = { " ": "a space", "\n": "a line break", "\t": "a tab" };

/** Start the panel. models: those that generate text. */
export function startScore(api, models) {
  const output = byId("score-output");
  const mean = byId("score-mean");
  const worst = byId("score-worst");

  async function read(model, chunk, before) {
    const body = { model, prompt: chunk, max_tokens: 0, echo: true, logprobs: 0 };
    body.return_state = true;
    body.state = before.state;
    const { choices } = await api.post("/v1/completions", body);
    const { tokens, token_logprobs: likelihoods } = choices[0].logprobs;
    const scored = tokens.map((text, index) => ({ text, bits: surprise(likelihoods[index]) }));
    return { state: choices[0].state, tokens: [...before.tokens, ...scored] };
  }

  function show(entry) {
    let bits = 0;
    let characters = 0;
    const marks = entry.tokens.map((token) => {
      if (token.bits !== null) {
        bits += token.bits;
        characters += Array.from(token.text).length;
      }
      return mark(token, characters && bits / characters);
    });
    output.replaceChildren(...marks);
    mean.textContent = characters ? (bits / characters).toFixed(2) : "–";
    say(worst, sentence(entry.tokens));
  }

  const about = ({ id }) => `Tells how well ${id} could guess each part from what comes before it.`;
  new Typing("score", models, { first: { tokens: [] }, read, show, about });
}

/** Bits of a log-likelihood in nats; null where nothing precedes. */
function surprise(nats) {
  return nats === null ? null : -nats / Math.LN2;
}

function mark({ text, bits }, mean) {
  if (bits === null) return element("span", {}, text);
  const level = Math.min(LEVELS - 1, Math.floor(bits / BITS_PER_LEVEL));
  const title = `${bits.toFixed(1)} bits; ${mean.toFixed(2)} bits per character so far`;
  const marked = element("span", { class: "surprise", title }, text);
  marked.style.setProperty("--level", level);
  return marked;
}

function sentence(tokens) {
  const known = tokens.filter(({ bits }) => bits !== null);
  if (!known.length) return "";
  const most = known.reduce((one, other) => (other.bits > one.bits ? other : one));
  const name = INVISIBLE[most.text] ?? `“${most.text.replaceAll("\n", "\u23ce")}”`;
  return `Most surprising: ${name}, with ${most.bits.toFixed(1)} bits.`;
}
