// The page: two forms, whose models are loaded when they are first used.

import { Reader } from "./classify.js";
import { generate } from "./generate.js";
import { Model } from "./model.js";

const models = {};
const load = (path) => (models[path] ??= Model.load(`models/${path}`));

async function savedState(input) {
  const [file] = input.files;
  return file && JSON.parse(await file.text());
}

// A form that is at work is `aria-busy`. Returns what the form was asked for.
function handle(form, work) {
  const [alert, button] = [form.querySelector("[role=alert]"), form.querySelector("button")];
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    form.ariaBusy = button.disabled = true;
    alert.textContent = "";
    try {
      await work(form.elements, form.querySelector("output"));
    } catch (error) {
      alert.textContent = error.message;
    }
    form.ariaBusy = button.disabled = false;
  });
}

handle(document.querySelector("#generate"), async (fields, output) => {
  output.textContent = "";
  const options = {
    prompt: fields.prompt.value,
    maxTokens: fields.maxTokens.valueAsNumber,
    temperature: fields.temperature.valueAsNumber,
    seed: fields.seed.value ? BigInt(fields.seed.value) : null,
    saved: await savedState(fields.state),
  };
  for await (const text of generate(await load("shakespeare/step.onnx"), options)) {
    output.textContent += text;
    await new Promise((next) => setTimeout(next)); // let the browser show it
  }
});

let reader = null;
const classifying = document.querySelector("#classify");
classifying.addEventListener("reset", () => {
  reader = null;
  classifying.querySelector("output").textContent = "";
});
handle(classifying, async (fields, output) => {
  reader ??= new Reader(await load("question-type/model.onnx"), await savedState(fields.state));
  const result = await reader.read(fields.chunk.value, fields.more.checked);
  if (result) output.textContent += `${result.label} ${result.score.toFixed(4)} after '${result.read}'\n`;
  if (!fields.more.checked) reader = null;
  fields.chunk.value = "";
});
