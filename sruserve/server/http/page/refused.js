// States that a server cannot open: of another key, of other weights, too old, or changed.

const REASONS = {
  state_unknown_key: "was made by a server with another key, so its memory cannot be opened here.",
  state_expired: "is too old: the server no longer opens its memory.",
  state_wrong_model: "was made with other weights of the model, so its memory does not fit here.",
  state_wrong_tenant: "belongs to another owner of keys, so its memory cannot be opened here.",
  state_tampered: "was cut or changed, so its memory cannot be read. Ask for it again.",
};

/** Whether an error says that a state cannot be opened; the text itself can be read anew. */
export function isRefusedState(error) {
  return Object.hasOwn(REASONS, error.code ?? "");
}

/** An error in words. subject: where the state is from, such as `This link`. */
export function problemOf(error, subject) {
  return isRefusedState(error) ? `${subject} ${REASONS[error.code]}` : error.message;
}
