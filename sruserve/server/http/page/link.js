// A link that carries a text and its state in the fragment, which browsers never send to a server.

const MAX_CHARACTERS = 4000; // of text in a link; the state has read all of it anyway

/** The address of this page that continues a stream at its end. */
export async function linkTo(stream) {
  const { state, seed } = await stream.checkpointAt(stream.text.length);
  const text = stream.text.slice(-MAX_CHARACTERS);
  const fields = {
    ...stream.options,
    text,
    ...(state !== null && { state }),
    ...(seed !== null && { seed }),
  };
  return `${location.origin}${location.pathname}#generate&${new URLSearchParams(fields)}`;
}

/** The fields of a link that carries a state, or null. */
export function readLink(fragment) {
  if (!fragment.startsWith("#generate&")) return null;
  const fields = new URLSearchParams(fragment.slice("#generate&".length));
  if (!fields.has("state") || !fields.has("model")) return null;
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
