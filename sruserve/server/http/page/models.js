// Models: what is loaded, and how busy it is now.

import { byId, element, say } from "./dom.js";
import { bytes, duration } from "./format.js";
import { buckets, quantile, readSamples } from "./metrics.js";

const POLL_MS = 2000;
const COUNT = "sru_request_seconds_count";
const BUCKET = "sru_request_seconds_bucket";

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
    cell("State", state(model)),
    cell("Requests/s", Number.isFinite(rate) ? rate.toFixed(1) : "–"),
    cell("p99", duration(p99)),
  ];
  return element("tr", {}, ...cells);
}

/** The size of a state. */
function state(model) {
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
