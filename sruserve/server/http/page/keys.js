// The API key: asked for once, and kept until the tab is closed.

import { byId, say } from "./dom.js";

const STORED = "sruserve-key";

/** Keeps the key of this session, and asks for it in a dialog. */
export class Keys {
  #asking = null;

  /** The key, or null. */
  get key() {
    return sessionStorage.getItem(STORED);
  }

  /**
   * Ask for a key, because the server refused the one that was `sent`.
   *
   * Requests that are refused together share one dialog. Throws the problem if the visitor cancels.
   */
  async ask(sent, problem) {
    if (this.key !== sent) return; // another request has asked meanwhile
    this.#asking ??= this.#open(sent === null ? "" : problem.message).finally(() => {
      this.#asking = null;
    });
    const key = await this.#asking;
    if (key === null) throw problem;
    sessionStorage.setItem(STORED, key);
  }

  #open(sentence) {
    const dialog = byId("key-dialog");
    const form = byId("key-form");
    const input = byId("key-input");
    input.value = "";
    say(byId("key-problem"), sentence);
    dialog.showModal();
    input.focus();
    return new Promise((resolve) => {
      const close = (event) => {
        event.preventDefault();
        const key = event.type === "submit" && input.value.trim() ? input.value.trim() : null;
        form.removeEventListener("submit", close);
        dialog.removeEventListener("cancel", close);
        byId("key-cancel").removeEventListener("click", close);
        dialog.close();
        resolve(key);
      };
      form.addEventListener("submit", close);
      dialog.addEventListener("cancel", close);
      byId("key-cancel").addEventListener("click", close);
    });
  }
}
