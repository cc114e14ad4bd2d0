// Read Prometheus' text format, and what changed between two readings.

const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** The samples of a text that have one of the names: `{name, labels, value}`. */
export function readSamples(text, names) {
  const samples = [];
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
    if (!names.includes(name)) continue;
    const pairs = [...labels.matchAll(LABEL)].map(([, key, content]) => [key, content]);
    samples.push({ name, labels: Object.fromEntries(pairs), value: Number(value) });
  }
  return samples;
}

/** Counts by upper bound, added over the samples of a histogram's buckets. */
export function buckets(samples) {
  const counts = new Map();
  for (const { labels, value } of samples) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return new Map([...counts].sort(([one], [other]) => one - other));
}

/** The quantile of what came between two readings of a histogram; NaN if nothing came. */
export function quantile(share, before, after) {
  const bounds = [...after.keys()];
  const counts = bounds.map((bound) => after.get(bound) - (before.get(bound) ?? 0));
  const wanted = share * counts.at(-1);
  if (!(wanted > 0)) return NaN;
  const index = counts.findIndex((count) => count >= wanted);
  const low = index ? bounds[index - 1] : 0;
  if (bounds[index] === Infinity) return low;
  const below = index ? counts[index - 1] : 0;
  return low + ((bounds[index] - low) * (wanted - below)) / (counts[index] - below);
}
