// A link that carries a text and its state in the fragment, which browsers never send to a server.

import { characterStart } from "./format.js";
import { problemOf } from "./refused.js";

/** What problems call a link. */
export const LINK = "This link";

const MAX_CHARACTERS = 4000; // of text in a link; the state has read all of it anyway

/** The address of this page that continues a stream at a position of its text. */
export async function linkTo(stream, position) {
  const text = stream.text.slice(0, characterStart(stream.text, position));
  const { state, seed } = await stream.checkpointAt(text.length);
  if (state === null) throw new Error("There is no memory yet: choose a later character.");
  const fields = {
    ...stream.options,
    text: text.slice(-MAX_CHARACTERS),
    state,
    ...(seed !== null && { seed }),
  };
  return `${location.origin}${location.pathname}#generate&${new URLSearchParams(fields)}`;
}

/** Whether a link to this page leads nowhere on other computers. */
export function isOnlyHere() {
  return /^(localhost|127\.[\d.]+|\[::1\])$/.test(location.hostname);
}

/** The fields of a link that carries a state, or null; throws if the state is missing. */
export function readLink(fragment) {
  if (!fragment.startsWith("#generate&")) return null;
  const fields = new URLSearchParams(fragment.slice("#generate&".length));
  if (!fields.has("state") || !fields.has("model")) {
    throw new Error(problemOf({ code: "state_tampered" }, LINK));
  }
  const number = (name) => (fields.has(name) ? Number(fields.get(name)) : null);
  return {
    options: {
      model: fields.get("model"),
      temperature: number("temperature") ?? 1,
      top_p: number("top_p") ?? 1,
    },
    text: fields.get("text") ?? "",
    state: fields.get("state"),
    seed: number("seed"),
  };
}
