// An exported graph, and what its file says of itself.

import * as ort from "onnxruntime-web/wasm";

ort.env.wasm.numThreads = 1; // a page that shares no memory has one

export class Model {
  // properties: those that `sruserve export onnx` wrote, without their prefix.
  constructor(session, properties) {
    this.session = session;
    this.properties = properties;
    this.vocabulary = JSON.parse(properties.vocabulary ?? "{}");
    this.labels = JSON.parse(properties.labels ?? "[]");
    const { offset, shape } = JSON.parse(properties.state).at(-1);
    this.width = shape.reduce((size, n) => size * n, 1) + offset;
  }

  static async load(url) {
    const reply = await fetch(url);
    if (!reply.ok) throw new Error(`${url}: ${reply.status} ${reply.statusText}`);
    const bytes = new Uint8Array(await reply.arrayBuffer());
    return new Model(await ort.InferenceSession.create(bytes), propertiesOf(bytes));
  }

  // The state row from which a stream begins: zeros, or that of a file of `sruserve export state`.
  begin(saved) {
    if (saved && saved.digest !== this.properties.digest)
      throw new Error("the state is another model's");
    return new ort.Tensor("float32", Float32Array.from(saved?.row ?? Array(this.width).fill(0)), [1, this.width]);
  }

  // One step of one stream, from its state to the next one: {logits, new_state}.
  step(id, state) {
    return this.session.run({ ids: int64([id], [1]), state });
  }

  // A whole sequence, or the next part of one: {logits, scores, new_state}.
  sequence(ids, state) {
    return this.session.run({ ids: int64(ids, [1, ids.length]), lengths: int64([ids.length], [1]), state });
  }
}

function int64(numbers, shape) {
  return new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), shape);
}

// The file is a protocol buffer, whose field 14 has the properties: pairs of field 1 and field 2.
export function propertiesOf(file) {
  const properties = {};
  const text = (bytes) => new TextDecoder().decode(bytes);
  for (const [field, value] of fields(file)) {
    if (field !== 14) continue;
    const { 1: name, 2: content } = Object.fromEntries(fields(value));
    properties[text(name).replace(/^sruserve\./, "")] = text(content);
  }
  return properties;
}

// The fields of a protocol buffer that are bytes: their numbers and values.
function* fields(bytes) {
  let at = 0;
  const number = () => {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = number();
    if (tag % 8 === 0) number();
    else if (tag % 8 === 2) {
      const length = number();
      yield [tag >> 3, bytes.subarray(at, (at += length))];
    } else at += tag % 8 === 1 ? 8 : 4;
  }
}
