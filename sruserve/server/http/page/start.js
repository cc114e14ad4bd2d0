// Add what makes the page work once its text is seen, so that the first frame waits for none of it.

const SCRIPTS = `
  api classify dom format generate keys lane link models prefixes refused score strip tabs tag
  text_stream tour translate typing wire
`;
const rest = document.getElementById("rest");
const style = rest.content.querySelector('[rel="stylesheet"]');
const preload = (name) =>
  Object.assign(document.createElement("link"), { rel: "modulepreload", href: `/page/${name}.js` });
const add = (paints) => {
  if (!paints.getEntriesByName("first-contentful-paint").length) return;
  // what comes is never seen without its style
  style.onload = style.onerror = () => rest.replaceWith(rest.content);
  document.head.append(style, ...SCRIPTS.match(/\w+/g).map(preload));
};
new PerformanceObserver(add).observe({ type: "paint", buffered: true });
