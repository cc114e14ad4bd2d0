// Label a text that comes in chunks, with model.onnx, which carries the state between them.

import { Words } from "./words.js";

export class Reader {
  // saved: a file of `sruserve export state`, to continue from.
  constructor(model, saved) {
    this.model = model;
    this.words = new Words(JSON.parse(model.vocabulary["tokenizer.json"]));
    this.state = model.begin(saved);
    this.word = saved?.word ?? ""; // the end of the text so far, until a space shows that it is whole
  }

  // Read the next chunk; returns {label, score, read}, or null if no word has ended.
  async read(chunk, more) {
    const text = this.word + chunk + (more ? "" : " ");
    const end = text.lastIndexOf(" ") + 1;
    this.word = text.slice(end);
    const ids = this.words.encode(text.slice(0, end));
    if (!ids.length) return null;
    const { scores, new_state } = await this.model.sequence(ids, this.state);
    this.state = new_state;
    const score = Math.max(...scores.data);
    return { label: this.model.labels[scores.data.indexOf(score)], score, read: text.slice(0, end) };
  }
}
