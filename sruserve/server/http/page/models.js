// Models: what is loaded, and how busy it is now.

import { byId, element, say } from "./dom.js";
import { bytes, duration } from "./format.js";

const POLL_MS = 2000;
const COUNT = "sru_request_seconds_count";
const BUCKET = "sru_request_seconds_bucket";

// Of Prometheus' text format.
const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Start the panel, which polls only while it is seen. */
export function startModels(api) {
  const table = byId("models-rows");
  const problem = byId("models-problem");
  const panel = byId("models");
  let last = null;
  let timer = null;

  async function look() {
    clearTimeout(timer);
    if (panel.hidden || document.hidden) return;
    try {
      const [models, text] = await Promise.all([api.get("/v1/models"), api.getText("/metrics")]);
      const now = { time: performance.now(), samples: readSamples(text, [COUNT, BUCKET]) };
      table.replaceChildren(...models.data.map((model) => row(model, last, now)));
      last = now;
      say(problem, "");
    } catch (error) {
      say(problem, error.message);
    }
    clearTimeout(timer);
    timer = setTimeout(look, POLL_MS);
  }

  new MutationObserver(look).observe(panel, { attributeFilter: ["hidden"] });
  document.addEventListener("visibilitychange", look);
  look();
}

function row(model, last, now) {
  const { rate, p99 } = busy(model.id.split("@")[0], last, now);
  const cells = [
    element("th", { scope: "row" }, model.id, " ", element("small", {}, model.description)),
    cell("Task", model.task),
    cell("Version", model.version),
    cell("Computes in", model.dtype),
    cell("Memory", memory(model)),
    cell("Requests/s", Number.isFinite(rate) ? rate.toFixed(1) : "–"),
    cell("p99", duration(p99)),
  ];
  return element("tr", {}, ...cells);
}

/** The size of a memory. */
function memory(model) {
  if (!model.streams) return "reads whole inputs";
  return model.task === "translate" ? "grows with its text" : bytes(model.state_bytes);
}

function cell(label, text) {
  return element("td", { "data-label": label }, text);
}

/** Requests per second and their 99th percentile between two readings. */
function busy(model, last, now) {
  if (last === null) return { rate: NaN, p99: NaN };
  const counted = (samples) => sum(ofModel(samples, COUNT, model));
  const seconds = (now.time - last.time) / 1000;
  const rate = Math.max(0, counted(now.samples) - counted(last.samples)) / seconds;
  const [before, after] = [last, now].map(({ samples }) =>
    buckets(ofModel(samples, BUCKET, model)),
  );
  return { rate, p99: after.size ? quantile(0.99, before, after) : NaN };
}

function ofModel(samples, name, model) {
  return samples.filter((sample) => sample.name === name && sample.labels.model === model);
}

function sum(samples) {
  return samples.reduce((total, { value }) => total + value, 0);
}

/** The samples of a text that have one of the names: `{name, labels, value}`. */
function readSamples(text, names) {
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
function buckets(samples) {
  const counts = new Map();
  for (const { labels, value } of samples) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return new Map([...counts].sort(([one], [other]) => one - other));
}

/** The quantile of what came between two readings of a histogram; NaN if nothing came. */
function quantile(share, before, after) {
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
