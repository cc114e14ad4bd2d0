// How many states the page keeps: they are small for most models, and a megabyte for a few.

const MAX_CHARACTERS = 16e6;
const FEWEST = 4;

/** The number of states like `state` to keep, at most `most`. */
export function keptStates(state, most) {
  return Math.max(FEWEST, Math.min(most, Math.floor(MAX_CHARACTERS / state.length)));
}
