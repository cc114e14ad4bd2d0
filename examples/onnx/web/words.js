// A tokenizer.json whose words are entries of a list: those parts of the format, no others.

// Classes of characters as the tokenizers library has them: JavaScript's know ASCII alone.
const CLASSES = { w: "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]", d: "\\p{Nd}", s: "\\p{White_Space}" };

export class Words {
  constructor({ normalizer, pre_tokenizer, model }) {
    if (model.type !== "WordLevel") throw new Error(`words.js reads no vocabulary of ${model.type}`);
    this.normalize = normalizer ? normalize(normalizer) : (text) => text;
    this.split = split(pre_tokenizer);
    this.ids = new Map(Object.entries(model.vocab));
    this.unknown = this.ids.get(model.unk_token);
  }

  encode(text) {
    return this.split(this.normalize(text)).map((word) => this.ids.get(word) ?? this.unknown);
  }
}

function pattern({ Regex: regex, String: string }) {
  if (string !== undefined) return string;
  return new RegExp(regex.replace(/\\([wds])/g, (_, letter) => CLASSES[letter]), "gv");
}

function normalize(step) {
  if (step.type === "Sequence") {
    const steps = step.normalizers.map(normalize);
    return (text) => steps.reduce((changed, change) => change(changed), text);
  }
  if (step.type === "Replace") {
    const found = pattern(step.pattern);
    return (text) => text.replaceAll(found, () => step.content);
  }
  if (step.type === "Lowercase") return (text) => Array.from(text, (c) => c.toLowerCase()).join("");
  if (/^NFK?[CD]$/.test(step.type)) return (text) => text.normalize(step.type);
  throw new Error(`words.js has no normalizer ${step.type}`);
}

function split(step) {
  if (step?.type === "WhitespaceSplit") return (text) => text.split(/\p{White_Space}+/v).filter(Boolean);
  if (step?.type !== "Split" || step.behavior !== "Removed")
    throw new Error(`words.js cannot split as ${step?.type} does`);
  const found = pattern(step.pattern);
  return (text) => (step.invert ? (text.match(found) ?? []) : text.split(found).filter(Boolean));
}
