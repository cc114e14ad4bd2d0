// Numbers in words.

const encoder = new TextEncoder();

/** The length of a text in bytes of UTF-8. */
export function byteLength(text) {
  return encoder.encode(text).length;
}

/** A number of bytes, such as `2.3 kB`. */
export function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1000).toFixed(count < 1e4 ? 1 : 0)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

/** A number with its thousands apart, such as `7,034`. */
export function grouped(count) {
  return count.toLocaleString("en");
}

/** A number of characters, such as `34 characters`. */
export function characters(count) {
  return count === 1 ? "1 character" : `${grouped(count)} characters`;
}

/** A share between 0 and 1 in percent. */
export function percent(share) {
  return `${(100 * share).toFixed(share >= 0.9995 || share < 0.0005 ? 0 : 1)} %`;
}

/** A duration, such as `3.2 ms`; seconds may be NaN if nothing was measured. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  const milliseconds = 1000 * seconds;
  return `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
}

/** A position moved back to the beginning of its character, if it is inside of one. */
export function characterStart(text, position) {
  const code = text.charCodeAt(position);
  return code >= 0xdc00 && code < 0xe000 ? position - 1 : position;
}
