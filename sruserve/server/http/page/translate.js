// Translate: a translation that follows the text, which a translator reads as a whole.

import { byId, say } from "./dom.js";
import { modelPicker } from "./typing.js";

/** Start the panel. models: those that translate. */
export function startTranslate(api, models) {
  const field = byId("translate-text");
  const problem = byId("translate-problem");
  const picker = modelPicker(byId("translate-model"), models);
  let abort = new AbortController();

  async function follow() {
    abort.abort(); // only the last text counts
    abort = new AbortController();
    const { signal } = abort;
    const body = { model: picker.value, input: field.value };
    try {
      const reply = field.value.trim() && (await api.post("/v1/translate", body, signal));
      byId("translate-output").textContent = reply ? reply.results[0].text : "";
      say(problem, "");
    } catch (error) {
      if (!signal.aborted) say(problem, error.message);
    }
  }

  field.addEventListener("input", follow);
  picker.addEventListener("change", follow);
}
