// Start the page: find the models, and show a tab for each task that they can do.

import { Api } from "./api.js";
import { startClassify } from "./classify.js";
import { byId, element, say } from "./dom.js";
import { Generate } from "./generate.js";
import { Keys } from "./keys.js";
import { startModels } from "./models.js";
import { startScore } from "./score.js";
import { startTabs } from "./tabs.js";
import { startTag } from "./tag.js";
import { Tour } from "./tour.js";
import { startTranslate } from "./translate.js";

// The panels of tasks, in the order of their tabs.
const PANELS = [
  ["classify", "classify", startClassify],
  ["generate", "generate", (api, models) => new Generate(api, models)],
  ["score", "generate", startScore],
  ["tag", "tag", startTag],
  ["translate", "translate", startTranslate],
];

async function start() {
  const api = new Api(new Keys(), (away) => {
    say(byId("away"), away ? "The server does not answer. Waiting for it; nothing is lost." : "");
  });
  const { data } = await api.get("/v1/models");
  const usable = data.filter(
    ({ task, streams, vocab_size: size }) => size !== null && (streams || task === "translate"),
  );
  const ofTask = (task) => usable.filter((model) => model.task === task);
  const panels = PANELS.filter(([, task]) => ofTask(task).length);
  const names = panels.map(([name]) => name);
  startTabs([...names, "models"]); // before the panels, since what is hidden cannot scroll
  for (const [, task, startPanel] of panels) startPanel(api, ofTask(task));
  startModels(api);
  new Tour(api, ofTask("classify"), ofTask("generate"));
}

async function startOrSay() {
  const place = byId("start-problem");
  say(place, "");
  try {
    await start();
  } catch (error) {
    say(place, error.message);
    place.append(" ", element("button", { click: () => location.reload() }, "Try again"));
  }
  document.body.removeAttribute("aria-busy");
}

startOrSay();
