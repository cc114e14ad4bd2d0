// Stream a text from step.onnx; a seed gives the server's text.

// Philox4x32-10 (Salmon et al. 2011): the number in [0, 1) for the token at a position.
export function uniform(seed, choice, position) {
  const low = 0xffffffffn;
  let [c0, c1, c2, c3] = [position & low, position >> 32n, choice, 0n];
  let [k0, k1] = [seed & low, (seed >> 32n) & low];
  for (let round = 0; round < 10; round++) {
    const [left, right] = [c0 * 0xd2511f53n, c2 * 0xcd9e8d57n];
    [c0, c1, c2, c3] = [(right >> 32n) ^ c1 ^ k0, right & low, (left >> 32n) ^ c3 ^ k1, left & low];
    [k0, k1] = [(k0 + 0x9e3779b9n) & low, (k1 + 0xbb67ae85n) & low];
  }
  return Number(((c0 >> 5n) << 26n) + (c1 >> 6n)) / 2 ** 53;
}

// The inverse CDF at a number in [0, 1), in id order; temperature 0 takes the likeliest id.
export function sample(logits, temperature, number) {
  const most = Math.max(...logits);
  if (temperature === 0) return logits.indexOf(most);
  let total = 0;
  const cdf = Array.from(logits, (logit) => (total += Math.exp((logit - most) / temperature)));
  return cdf.findIndex((mass) => mass > number * total);
}

// Yields the text as it comes. saved: a file of `sruserve export state`, to continue from.
export async function* generate(model, { prompt, saved, maxTokens, temperature, seed }) {
  const bytes = JSON.parse(model.vocabulary["bytes.json"]);
  const written = new TextDecoder();
  let ids = [...(saved?.pending ?? []), ...Array.from(new TextEncoder().encode(prompt), (byte) => bytes.indexOf(byte))];
  if (!ids.length || ids.includes(-1)) throw new Error("give a prompt of characters that the model knows, or a state");
  let [state, position] = [model.begin(saved), BigInt(saved?.steps ?? 0)];
  const choice = seed === null ? BigInt(saved?.choice ?? 0) : 0n;
  seed = BigInt.asUintN(64, seed ?? BigInt(saved?.seed ?? 0));
  yield written.decode(Uint8Array.from(saved?.unsent ?? []), { stream: true });
  for (let token = 0; token < maxTokens; token++) {
    let logits;
    for (const id of ids) { // the prompt, then the last token
      ({ logits, new_state: state } = await model.step(id, state));
      position++;
    }
    ids = [sample(logits.data, temperature, uniform(seed, choice, position))];
    yield written.decode(Uint8Array.of(bytes[ids[0]]), { stream: true });
  }
}
