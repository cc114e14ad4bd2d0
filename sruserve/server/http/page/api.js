// Requests to the server: the key, events, errors as sentences, and a server that restarts.

const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 2000;
const MAX_FUTILE_TRIES = 5; // of a server that says that it is ready

/** An error that the server answered with; its message is a sentence for people. */
export class ApiError extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

/** The connection was refused or broke off. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

/** Whether an error passes once the server is ready again. */
export function isAway(error) {
  if (error instanceof Unreachable) return true;
  return (
    error instanceof ApiError && (error.code === "draining" || [502, 503].includes(error.status))
  );
}

/**
 * The server's API.
 *
 * keys: gives the API key, and asks for another if the server refuses it.
 * onAway: is called with true while the server is waited for, and then with false.
 */
export class Api {
  #away = 0;

  constructor(keys, onAway) {
    this.keys = keys;
    this.onAway = onAway;
  }

  /** The JSON at a path. */
  async get(path, signal) {
    return this.patiently(async () => (await this.#send(path, {}, signal)).json(), signal);
  }

  /** The text at a path; throws while the server is away. */
  async getText(path, signal) {
    return (await this.#send(path, {}, signal)).text();
  }

  /** The JSON that answers a body of JSON. */
  async post(path, body, signal) {
    return this.patiently(async () => (await this.#post(path, body, signal)).json(), signal);
  }

  /** The events that answer a body; throws `Unreachable` if they break off. */
  async *stream(path, body, signal) {
    const response = await this.#post(path, body, signal);
    try {
      for await (const data of readEvents(response.body)) {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, event.error.code, 0);
        yield event;
      }
    } catch (error) {
      throw error instanceof TypeError ? new Unreachable() : error;
    }
    throw new Unreachable();
  }

  /** The result of `work`, which is tried again when the server is back. */
  async patiently(work, signal) {
    for (let futile = 0; ;) {
      try {
        return await work();
      } catch (error) {
        if (!isAway(error) || futile === MAX_FUTILE_TRIES) throw error;
      }
      futile = (await this.untilReady(signal)) ? 0 : futile + 1;
    }
  }

  /** Wait until the server is ready; returns whether it was not so at first. */
  async untilReady(signal) {
    this.#setAway(1);
    try {
      for (let wait = FIRST_WAIT_MS; ; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
        await pause(wait, signal);
        const response = await fetch("/readyz", { signal, cache: "no-store" }).catch(() => null);
        signal?.throwIfAborted();
        if (response?.ok) return wait > FIRST_WAIT_MS;
      }
    } finally {
      this.#setAway(-1);
    }
  }

  #setAway(change) {
    this.#away += change;
    this.onAway(this.#away > 0);
  }

  #post(path, body, signal) {
    const headers = { "content-type": "application/json" };
    return this.#send(path, { method: "POST", headers, body: JSON.stringify(body) }, signal);
  }

  async #send(path, options, signal) {
    for (;;) {
      const key = this.keys.key;
      const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
      let response;
      try {
        response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
      } catch (error) {
        throw error instanceof TypeError ? new Unreachable() : error;
      }
      if (response.ok) return response;
      const problem = await readProblem(response);
      if (response.status !== 401) throw problem;
      await this.keys.ask(key, problem);
    }
  }
}

/** The data of each event, in order. */
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // a reader that stops early ends the request
  }
}

async function readProblem(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(message, body?.error?.code ?? "", response.status);
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", leave);
      resolve();
    }, milliseconds);
    const leave = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal?.addEventListener("abort", leave, { once: true });
  });
}
